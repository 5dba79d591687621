"""What can be asked of a sandbox, and what is refused before it is asked."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from warren.http.api import e2b
from warren.model.errors import InvalidPath, InvalidRequest, LimitReached, UnknownUser
from warren.model.operations import FileInfo, Search
from warren.model.spec import WORKSPACE, SandboxSpec
from warren.sessions.operations.files import check_readable
from warren.testing.fake_provider import FakeProvider
from warren.testing.fake_sandbox import FakeSandbox


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


class _WatchedFiles(FakeSandbox):
    """Counts the reads and lists that have begun and are not closed."""

    open = 0

    async def read(self, *args: Any, **options: Any) -> AsyncIterator[bytes]:
        self.open += 1
        try:
            async for data in super().read(*args, **options):
                yield data
        finally:
            self.open -= 1

    async def entries(self, *args: Any, **options: Any) -> AsyncIterator[FileInfo]:
        self.open += 1
        try:
            async for info in super().entries(*args, **options):
                yield info
        finally:
            self.open -= 1


@pytest.mark.anyio
async def test_what_is_not_read_to_its_end_is_closed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    provider = FakeProvider()
    made = await provider.create(SandboxSpec("base"))
    sandbox = _WatchedFiles(made._machine)  # type: ignore[attr-defined]
    for name in ("a", "b"):
        await sandbox.write(f"{WORKSPACE}/{name}", b"abc")
    await check_readable(sandbox, f"{WORKSPACE}/a", "")
    assert sandbox.open == 0
    new = e2b._new_files(sandbox, set())
    await anext(new)
    await new.aclose()
    assert sandbox.open == 0
    monkeypatch.setattr(e2b, "_MAX_FILES", 1)
    with pytest.raises(LimitReached):
        await e2b._seen_files(sandbox)
    assert sandbox.open == 0
