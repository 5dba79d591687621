"""The result of one check."""

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "FAIL"


@dataclass(frozen=True, slots=True)
class Check:
    """`found`: what the check saw. `remedy`: what to do about it, if something is wrong."""

    name: str
    level: Level
    found: str
    remedy: str = ""


def ok(name: str, found: str) -> Check:
    return Check(name, Level.OK, found)


def warn(name: str, found: str, remedy: str) -> Check:
    return Check(name, Level.WARN, found, remedy)


def fail(name: str, found: str, remedy: str) -> Check:
    return Check(name, Level.FAIL, found, remedy)
