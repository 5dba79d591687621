"""Runs the check of a webhook's signature that docs/webhooks.md shows to receivers; tests receive webhooks with it."""

import re
import runpy
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_PAGE = Path(__file__).parents[1] / "docs" / "webhooks.md"


def is_genuine(secret: str, headers: Mapping[str, str], body: bytes, now: float) -> bool:
    return bool(_shown["is_genuine"](secret, headers, body, now))


def _read_page() -> dict[str, Any]:
    blocks = re.findall(r"^```python\n(.*?)^```", _PAGE.read_text(), flags=re.M | re.S)
    (block,) = [block for block in blocks if "def is_genuine" in block]
    with tempfile.NamedTemporaryFile("w", suffix=".py") as program:
        program.write(block)
        program.flush()
        return runpy.run_path(program.name)


_shown = _read_page()
