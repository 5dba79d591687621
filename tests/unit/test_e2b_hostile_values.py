"""Values that a hostile client or sandbox makes up for E2B's wire: none is an internal error, none takes long."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from warren.e2b.control.bodies import read_whole
from warren.e2b.control.metrics import _figures
from warren.e2b.envd.filesystem import entry_of
from warren.e2b.errors import E2bError
from warren.e2b.users import resolve
from warren.model.errors import UnknownUser
from warren.model.operations import FileInfo, FileKind
from warren.model.spec import MIB, Limits, SandboxSpec
from warren.testing.fake_provider import FakeProvider

pytestmark = pytest.mark.anyio


@contextmanager
def soon(limit_s: float) -> Iterator[None]:
    began = time.process_time()
    yield
    assert time.process_time() - began < limit_s


@pytest.mark.parametrize("value", [10**400, -(10**400), 1e300, float("inf"), float("nan"), 1.5, True, "1", [1]])
def test_a_number_that_is_none_or_too_large_is_refused(value: object) -> None:
    with pytest.raises(E2bError) as refused:
        read_whole({"timeout": value}, "timeout", 0, 100)
    assert refused.value.status == 400
    assert [read_whole({"timeout": one}, "timeout", 0, 100) for one in (7, 7.0, None)] == [7, 7, None]


@pytest.mark.parametrize(
    "processes",
    ["\n" * MIB, "1 \n" * (MIB // 3), "1 (x)" + " 1" * (MIB // 2), f"1 (x){f' {9**3000}' * 30}\n" * 20],
    ids=["lines", "short", "fields", "digits"],
)
def test_figures_that_a_sandbox_makes_up_are_read_soon(processes: str) -> None:
    disk = f"end\nhead\nx {'9' * 4000} {'9' * 4000}\n"
    with soon(0.5):
        figures = _figures(f"{processes}end\n{processes}{disk}", Limits(memory_mb=64), 1.0)
    assert 0 <= figures["memUsed"] <= figures["memTotal"] == 64 * MIB
    assert figures["diskUsed"] < 10**30


@pytest.mark.parametrize("seconds", [1e18, 253402300800.0, -1e18])
def test_a_file_may_have_any_time(seconds: float) -> None:
    entry = entry_of(FileInfo("/tmp/a", FileKind.FILE, 0, 0o644, 1000, 1000, seconds))
    assert entry["modifiedTime"].endswith("Z")


async def test_a_list_of_users_is_searched_soon() -> None:
    sandbox = await FakeProvider().create(SandboxSpec(sudo=True))
    lines = b"\n" * 200_000 + b"ann:x:1:1:Ann:/home/ann:/bin/sh\nbob:x:1:1:Bob:home:\n\xff:x:1:1::/f:\n"
    await sandbox.write("/etc/passwd", lines, user="root")
    with soon(0.05):
        assert (await resolve(sandbox, "ann")).home == "/home/ann"
    assert (await resolve(sandbox, "bob")).home == "/"
    assert (await resolve(sandbox, "\udcff")).home == "/f"
    for name in ("nn", "ann:x", "Ann", "a.n", "ann\n"):
        with pytest.raises(UnknownUser):
            await resolve(sandbox, name)
