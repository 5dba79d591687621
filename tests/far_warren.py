"""A second Warren that is the far side of the provider e2b."""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from copied_image import add_image
from server_process import ServerProcess, running_server
from this_run import new_state_dir

from warren.images.store.store import ImageStore

KEY = "e2b_" + "0" * 80  # any key
_ENVIRONMENTS = {
    "small": "image: base\nlimits: {disk_mb: 16}\n",
    "far-python": "image: python\n",
    "far-slow": "image:\n  about: 5 s\n  run: [sleep 5, echo made > /made]\n",
    "far-broken": 'image:\n  run: ["false"]\n',
}


@contextlib.contextmanager
def running_far_warren(image_cache: Path, **environ: str) -> Iterator[ServerProcess]:
    """Runs a server whose template `code-interpreter-v1` has the tests' image python, and `small` a disk of 16 MB. It
    checks keys only if `environ` has WARREN_API_KEY. It builds images, so it shares none with other tests."""
    state = new_state_dir()
    add_image(state, "base", ImageStore(image_cache).rootfs("base").path.parent)
    (state / "images" / "python").symlink_to((state / "images" / "base").readlink())
    folder = state / "registry" / "environments"
    folder.mkdir(parents=True)
    for name, text in _ENVIRONMENTS.items():
        (folder / f"{name}.yaml").write_text(f"name: {name}\nroot: writable\nsudo: true\n{text}")
    flags = ("--environment", "e2b", "--pool-size", "2", "--registry-dir", str(folder.parent))
    templates = "base=e2b,code-interpreter-v1=far-python"
    try:
        with running_server(state, *flags, WARREN_E2B_TEMPLATES=templates, **environ) as server:
            yield server
    finally:
        shutil.rmtree(state, ignore_errors=True)
