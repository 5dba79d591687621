"""The servers that these programs measure: those of warren.measure, with the images of the tests."""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from warren.measure import server as measured
from warren.measure.server import Server

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "build" / "test-state" / "images"


@contextlib.contextmanager
def serving(*flags: str, **environ: str) -> Iterator[Server]:
    """Runs a server without authentication, unless WARREN_API_KEY is given; everything it made is gone at the end.

    `PYTHONPATH` makes it that of another checkout.
    """
    state = Path(tempfile.mkdtemp(prefix="warren-bench-", dir="/var/tmp"))
    (state / "images").symlink_to(IMAGES)
    source = {"PYTHONPATH": str(ROOT / "src")}
    auth = {"WARREN_AUTH": "true"} if "WARREN_API_KEY" in environ else {}
    with measured.serving(state, *flags, variables={**source, **auth, **environ}) as server:
        yield server
