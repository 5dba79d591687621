"""Reads files in YAML that people write: environments, presets, policies."""

from pathlib import Path
from typing import Any

import yaml

from warren.model.errors import InvalidRequest


def read_yaml(path: Path) -> Any:
    """Raises InvalidRequest, with the file and what is wrong in it."""
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.MarkedYAMLError as exc:
        line = exc.problem_mark.line + 1 if exc.problem_mark else "?"
        raise InvalidRequest(f"{path}, line {line}: this is not YAML: {exc.problem}") from exc
    except (yaml.YAMLError, UnicodeError) as exc:
        raise InvalidRequest(f"{path}: this is not YAML: {' '.join(str(exc).split())}") from exc
    except OSError as exc:
        raise InvalidRequest(f"{path} cannot be read: {exc.strerror}") from exc
