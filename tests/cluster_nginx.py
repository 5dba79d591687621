"""A real nginx with deploy/nginx/cluster.conf, in a directory and on a port of its own, before servers on loopback."""

import os
import re
from collections.abc import Sequence
from pathlib import Path

from nginx_process import MAIN, NginxProcess
from server_process import free_port

CONF = Path(__file__).parents[1] / "deploy" / "nginx" / "cluster.conf"
UPSTREAM = re.compile(r"server (coordinator-\d+):8000")


class ClusterNginx(NginxProcess):
    """In front of the servers at `ports`, one for each coordinator the file names."""

    def __init__(self, prefix: Path, ports: Sequence[int]) -> None:
        self.prefix, self.name = prefix, "127.0.0.1"
        self.http = self.https = free_port()
        self._process = None
        user = "user root;" if os.geteuid() == 0 else ""
        (prefix / "nginx.conf").write_text(MAIN.format(prefix=prefix, user=user))
        (prefix / "warren.conf").write_text(self._for_ports(CONF.read_text(), ports))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http}"

    def _for_ports(self, text: str, ports: Sequence[int]) -> str:
        """The file as it is delivered, but for addresses and paths; each must be there to be changed."""
        assert len(UPSTREAM.findall(text)) == len(ports)
        left = iter(ports)
        text = UPSTREAM.sub(lambda _: f"server 127.0.0.1:{next(left)}", text)
        for pattern, replacement in {
            r"listen 8000;": f"listen 127.0.0.1:{self.http};",
            r"/var/log/nginx/": f"{self.prefix}/",
        }.items():
            text, count = re.subn(pattern, replacement, text)
            assert count, pattern
        return text
