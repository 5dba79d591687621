"""One kind of the registry's entries: a directory of YAML files, each of which describes one thing and holds no logic.

A file that has changed is read again when its entry is next used. If it has a mistake then, the entry stays as it was;
one that was never right cannot be used. A mistake in one file does not affect the others.
"""

import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final, Generic, TypeVar

from warren.model.errors import InvalidRequest, Unavailable
from warren.model.suggestions import suggest

Entry = TypeVar("Entry")

_SUFFIXES: Final = (".yaml", ".yml")


@dataclass(frozen=True, slots=True)
class RegistryFileChange:
    """`kept`: the file has a mistake, and the entry stays as it was read before."""

    name: str
    problem: str = ""
    removed: bool = False
    kept: bool = False


@dataclass(frozen=True, slots=True)
class _Reading(Generic[Entry]):
    """A file as it was read; `stamp` tells whether it has changed since. `entry` is None if it was never right."""

    path: Path
    stamp: tuple[int, ...]
    entry: Entry | None
    problem: str = ""


class RegistryFiles(Generic[Entry]):
    """Entries of one kind by name. Later directories win over earlier ones.

    `kind` is the name of the directory and of the kind; without its last letter it is the word for one of them.
    """

    def __init__(
        self,
        kind: str,
        read_file: Callable[[Path], Entry],
        unknown: type[InvalidRequest],
        *directories: Path,
    ) -> None:
        self.kind, self._word = kind, kind[:-1]
        self._read_file, self._unknown = read_file, unknown
        self._directories = directories
        self._files = self._scan()
        self._readings: dict[str, _Reading[Entry]] = {}
        self._reported: dict[str, _Reading[Entry]] = {}

    @property
    def names(self) -> Sequence[str]:
        self._files = self._scan()
        return sorted(self._files, key=lambda name: (name.casefold(), name))

    def get(self, name: str) -> Entry:
        """Returns an entry. Raises the kind's error for a name that is unknown, and Unavailable if there is a mistake
        in its file. The message does not tell the mistake, because callers of the server get it."""
        reading = self._look_at(name)
        if reading is None:
            raise self.unknown_error(name)
        if reading.entry is None:
            raise Unavailable(
                f"the {self._word} {name!r} cannot be used: its file on the server has a mistake",
                remedy=f"the operator finds it in the server's log, or with `warren {self._validate}`",
            )
        return reading.entry

    @property
    def _validate(self) -> str:
        return "environments validate" if self.kind == "environments" else "registry validate"

    def read(self, name: str) -> Entry:
        """Returns an entry for the operator. Raises InvalidRequest, with the file and what is wrong in it."""
        if self._look_at(name) is None:
            raise self.unknown_error(name)
        return self._read_one(self._files[name])

    def list(self) -> Sequence[Entry]:
        """Returns the entries that can be used, by name."""
        found = []
        for name in self.names:
            with contextlib.suppress(Unavailable, self._unknown):
                found.append(self.get(name))
        return found

    def problems(self) -> dict[str, str]:
        """Returns by name what is wrong with each entry's file; empty texts if nothing is."""
        readings = {name: self._look_at(name) for name in self.names}
        return {name: reading.problem if reading else "" for name, reading in readings.items()}

    def changes(self) -> Sequence[RegistryFileChange]:
        """Returns what has changed since the last call; the first call returns all entries."""
        readings = {name: reading for name in self.names if (reading := self._look_at(name))}
        before, self._reported = self._reported, readings
        found = [RegistryFileChange(name, removed=True) for name in before if name not in readings]
        for name, reading in readings.items():
            if before.get(name) is not reading:
                found.append(RegistryFileChange(name, reading.problem, kept=bool(reading.problem and reading.entry)))
        return found

    def path(self, name: str) -> Path:
        return self._files[name]

    def unknown_error(self, name: str) -> InvalidRequest:
        names = self.names
        remedy = f"{suggest(name, names)}there are: {', '.join(names) or 'none'}"
        return self._unknown(f"there is no {self._word} {name[:100]!r}", remedy=remedy)

    def _scan(self) -> dict[str, Path]:
        return {
            path.stem: path
            for directory in self._directories
            for path in sorted((directory / self.kind).glob("*.y*ml"), reverse=True)  # `.yaml` after `.yml`, so it wins
            if path.suffix in _SUFFIXES and not path.name.startswith(".")
        }

    def _look_at(self, name: str) -> _Reading[Entry] | None:
        """Returns the file of an entry, read again if it has changed; None if there is none. Costs two calls of stat if
        nothing has changed."""
        path = self._files.get(name)
        stamp = _stamp(path) if path else None
        if path is None or stamp is None:
            self._files = self._scan()
            path = self._files.get(name)
            stamp = _stamp(path) if path else None
            if path is None or stamp is None:
                self._readings.pop(name, None)
                return None
        known = self._readings.get(name)
        if known is None or (known.path, known.stamp) != (path, stamp):
            try:
                known = _Reading(path, stamp, self._read_one(path))
            except InvalidRequest as exc:
                known = _Reading(path, stamp, known.entry if known else None, str(exc))
            self._readings[name] = known
        return known

    def _read_one(self, path: Path) -> Entry:
        twin = _twin_of(path)
        if twin.exists():
            raise InvalidRequest(f"{path}: {twin.name} is there as well", remedy="remove one of them")
        return self._read_file(path)


def _twin_of(path: Path) -> Path:
    return path.with_suffix(_SUFFIXES[path.suffix == _SUFFIXES[0]])


@lru_cache(maxsize=1024)
def _names(path: Path) -> tuple[str, str]:
    return str(path), str(_twin_of(path))


def _stamp(path: Path) -> tuple[int, ...] | None:
    """Returns values that differ once the file was changed. Each create asks for them several times, so this must be
    cheap."""
    name, twin = _names(path)
    try:
        found = os.stat(name)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size, os.path.exists(twin)
