"""Finds the module for zstd: Python's own, or its backport."""

import importlib
import sys
from typing import Any

from warren.model.errors import Unavailable


def zstd_module() -> Any:
    """Raises Unavailable if it is not installed."""
    name = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
    try:
        return importlib.import_module(name)
    except ImportError as exc:
        raise Unavailable(
            f"this needs zstd, and Python's module {name} is not installed",
            remedy="install Warren with its extra: pip install 'warren-sandbox[server]'",
        ) from exc
