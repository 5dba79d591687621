"""Reads files in YAML that people write: environments, agents, tools, prompts, presets, policies.

A file is read whole or not at all: duplicate keys, tags, and aliases that blow it up are mistakes.
"""

import os
import stat
from pathlib import Path
from typing import Any, Final

import yaml

from warren.model.errors import InvalidRequest

MAX_BYTES: Final = 256 * 1024
_MAX_NODES: Final = 20_000  # with what aliases stand for
_MAX_DEPTH: Final = 32
_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MERGE: Final = "tag:yaml.org,2002:merge"

Key = str | int


class YamlFile:
    """What a file says, and on which lines. As text it is the file's path."""

    def __init__(self, path: Path) -> None:
        """Raises InvalidRequest, with the file and what is wrong in it."""
        self.path = path
        self._lines: dict[tuple[Key, ...], int] = {}
        self._nodes = 0
        self.values = self._load(_read_text(path))

    def __str__(self) -> str:
        return str(self.path)

    def error(self, message: str, *keys: Key, remedy: str = "") -> InvalidRequest:
        """Returns an error that names the file and the line of these keys, or of the innermost one that there is."""
        while keys and keys not in self._lines:
            keys = keys[:-1]
        line = f", line {self._lines[keys]}" if keys else ""
        return InvalidRequest(f"{self.path}{line}: {message}", remedy=remedy)

    def _load(self, text: str) -> Any:
        loader = _LOADER(text)
        try:
            root = loader.get_single_node()
            if root is None:
                return None
            self._look_through(root, (), ())
            return loader.construct_document(root)
        except yaml.MarkedYAMLError as exc:
            last = max(1, len(text.splitlines()))  # what is missing at the end is reported behind the last line
            line = min(last, exc.problem_mark.line + 1) if exc.problem_mark else "?"
            remedy = "indent with blanks, YAML takes no tabs" if "'\\t'" in str(exc.problem) else ""
            raise InvalidRequest(f"{self.path}, line {line}: this is not YAML: {exc.problem}", remedy=remedy) from exc
        except RecursionError as exc:
            raise self.error(f"values lie more than {_MAX_DEPTH} deep") from exc
        except (yaml.YAMLError, ValueError) as exc:
            raise InvalidRequest(f"{self.path}: this is not YAML: {' '.join(str(exc).split())[:200]}") from exc
        finally:
            loader.dispose()

    def _look_through(self, node: yaml.Node, keys: tuple[Key, ...], above: tuple[yaml.Node, ...]) -> None:
        """Notes the lines of keys. Raises InvalidRequest for duplicate keys, and for more values or more depth than any
        file needs."""
        self._nodes += 1
        if self._nodes > _MAX_NODES:
            raise self.error(f"it has more than {_MAX_NODES} values, counting those that aliases repeat")
        if len(above) >= _MAX_DEPTH:
            raise self.error(f"values lie more than {_MAX_DEPTH} deep", *keys)
        above = (*above, node)
        if isinstance(node, yaml.SequenceNode):
            for place, item in enumerate(node.value):
                self._lines.setdefault((*keys, place), item.start_mark.line + 1)
                self._look_through(item, (*keys, place), above)
        elif isinstance(node, yaml.MappingNode):
            seen = dict[str, int]()
            for key, value in node.value:
                name, line = str(key.value), key.start_mark.line + 1
                if key.tag == _MERGE:
                    self._look_through(value, keys, above)
                    continue
                if name in seen:
                    raise InvalidRequest(
                        f"{self.path}, line {line}: the key {name!r} comes twice, first in line {seen[name]}",
                        remedy="remove one of them",
                    )
                seen[name] = self._lines[(*keys, name)] = line
                self._look_through(value, (*keys, name), above)


def read_yaml(path: Path) -> Any:
    """Raises InvalidRequest, with the file and what is wrong in it."""
    return YamlFile(path).values


def _read_text(path: Path) -> str:
    try:
        # A pipe of that name must not keep the reader waiting.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise InvalidRequest(f"{path} is not a file")
            data = file.read(MAX_BYTES + 1)
    except OSError as exc:
        raise InvalidRequest(f"{path} cannot be read: {exc.strerror}") from exc
    if len(data) > MAX_BYTES:
        raise InvalidRequest(f"{path} is longer than {MAX_BYTES // 1024} KiB")
    try:
        return data.decode()
    except UnicodeError as exc:
        raise InvalidRequest(f"{path}: this is not YAML: {' '.join(str(exc).split())}") from exc
