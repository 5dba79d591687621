"""The runners of code contexts: programs of the package that lie, read-only, in every sandbox at RUNNERS."""

import os
from functools import cache
from pathlib import Path
from typing import Final

_SOURCE: Final = Path(__file__).parents[2] / "runners"


@cache
def runner_files() -> dict[str, bytes]:
    """Returns the content of the runners by path, sorted. Read once: a server whose package is replaced goes on with
    those it began with."""
    paths = (path for path in _SOURCE.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {str(path.relative_to(_SOURCE)): path.read_bytes() for path in sorted(paths)}


@cache
def _folders() -> list[str]:
    return sorted({"", *(str(each) for path in runner_files() for each in Path(path).parents[:-1])})


def write_runners(folder: Path) -> None:
    """Writes the runners to a new directory that every user may read, whatever the umask."""
    for name in _folders():
        os.mkdir(f"{folder}/{name}")
        os.chmod(f"{folder}/{name}", 0o755)
    for name, content in runner_files().items():
        with open(f"{folder}/{name}", "xb") as file:
            file.write(content)
            os.fchmod(file.fileno(), 0o644)
