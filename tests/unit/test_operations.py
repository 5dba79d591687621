"""What can be asked of a sandbox, and what is refused before it is asked."""

import pytest

from warren.model.errors import InvalidPath, InvalidRequest, UnknownUser
from warren.model.operations import Search


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"glob": "a\0b"},
        {"pattern": "a\nb"},
        {"glob": "x" * 4001},
        {"pattern": "ä" * 2001},
        {"pattern": "bad\udcff"},
        {"glob": "\ud800"},
        {"glob": "src/"},
        {"glob": "{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}"},
        {"glob": "*", "max_matches": 0},
        {"glob": "*", "max_matches": 100_001},
        {"glob": "*", "max_file_bytes": 0},
        {"glob": "*", "timeout_s": 0},
        {"glob": "*", "timeout_s": 601},
        {"glob": "*", "timeout_s": float("nan")},
    ],
)
def test_a_search_that_cannot_be_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest):
        Search(**fields)  # type: ignore[arg-type]


def test_a_search_checks_its_path_and_its_user() -> None:
    with pytest.raises(InvalidPath):
        Search(path="", glob="*")
    with pytest.raises(UnknownUser):
        Search(glob="*", user="a\0b")


@pytest.mark.parametrize(
    ("glob", "globs"),
    [
        ("", ()),
        ("*.py", ("*.py",)),
        ("*.{c,h}", ("*.c", "*.h")),
        ("{a,b}/{c,d}", ("a/c", "a/d", "b/c", "b/d")),
        ("x{,.bak}", ("x", "x.bak")),
        ("{a,b{c,d}}", ("a", "bc", "bd")),
        ("{one}", ("{one}",)),
        (r"\{a,b}", (r"\{a,b}",)),
    ],
)
def test_braces_are_alternatives(glob: str, globs: tuple[str, ...]) -> None:
    assert sorted(Search(glob=glob, pattern="x").globs()) == sorted(globs)
