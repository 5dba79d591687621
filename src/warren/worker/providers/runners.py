"""The runners of code contexts: programs of the package that lie, read-only, in every sandbox at RUNNERS."""

from functools import cache
from pathlib import Path
from typing import Final

_SOURCE: Final = Path(__file__).parents[2] / "runners"


@cache
def runner_files() -> dict[str, bytes]:
    """Their content by path, sorted. Read once: a server whose package is replaced goes on with those it began with."""
    paths = (path for path in _SOURCE.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {str(path.relative_to(_SOURCE)): path.read_bytes() for path in sorted(paths)}


def write_runners(folder: Path) -> None:
    """Writes them to a new directory that every user may read."""
    folders = {folder / name for path in runner_files() for name in Path(path).parents}
    for each in sorted({folder, *folders}):
        each.mkdir(mode=0o755)
        each.chmod(0o755)  # the umask may have taken something away
    for name, content in runner_files().items():
        (folder / name).write_bytes(content)
        (folder / name).chmod(0o644)
