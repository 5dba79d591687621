"""State directories in which images are built, each with an image `base` of its own; addresses of package indexes."""

import ipaddress
import os
import socket
from pathlib import Path

from copied_image import add_image
from this_run import new_state_dir

from warren.config.presets import PresetReader
from warren.images.store.store import ImageStore


def new_image_state(image_cache: Path) -> Path:
    """Shares no directory of images with others. The files of `base` are hard links."""
    state = new_state_dir()
    add_image(state, "base", ImageStore(image_cache).rootfs("base").path.parent)
    return state


def index_networks() -> str:
    """For WARREN_EGRESS_NETWORKS: the addresses of this machine's package indexes that are not public."""
    found = set()
    for preset in PresetReader(None, dict(os.environ)).read().known.values():
        for rule in preset.allow:
            host = rule.rpartition(":")[0].strip("[]")
            for *_, address in socket.getaddrinfo(host, 443, type=socket.SOCK_STREAM):
                if not ipaddress.ip_address(address[0]).is_global:
                    found.add(str(address[0]))
    return ",".join(sorted(found))
