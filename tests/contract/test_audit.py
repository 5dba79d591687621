"""The audit records keep the contract, and what is special about files. What is special about Redis is in
test_redis_audit.py."""

import asyncio
import json
import logging
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import anyio
import pytest
from contract.audit_contract import EVERYTHING, AuditContract, a_deed, all_of

from warren.governance.audit.entries import LEFT_OUT, encode_entry
from warren.governance.audit.files import FileAudit, lines_before, read_page, verify_files
from warren.governance.audit.rotating_files import Appended, RotatingFiles, make_directory
from warren.governance.audit.writer import AuditWriter
from warren.interfaces.audit import AuditLog, Query
from warren.model.audit import DROPPED, CommandText
from warren.model.errors import Unavailable
from warren.testing.memory_audit import MemoryAudit

pytestmark = pytest.mark.group_by("class")

_PROGRAMS = Path(__file__).parent


class TestMemoryAudit(AuditContract):
    @pytest.fixture
    async def log(self) -> AuditLog:
        return MemoryAudit()

    async def test_only_the_newest_are_kept(self) -> None:
        log = MemoryAudit(keep=3)
        for number in range(5):
            log.record(a_deed(float(number)))
        assert [entry.at for entry in await all_of(log, EVERYTHING)] == [4.0, 3.0, 2.0]
        assert repr(log) == "<MemoryAudit: 3>"


class TestFileAudit(AuditContract):
    @pytest.fixture
    async def log(self, tmp_path: Path) -> AsyncIterator[AuditLog]:
        log = await FileAudit.open(tmp_path / "audit")
        yield log
        await log.close()


@pytest.mark.extended
class TestFileAuditOfManyFiles(AuditContract):
    """Every file takes a few lines."""

    @pytest.fixture
    async def log(self, tmp_path: Path) -> AsyncIterator[AuditLog]:
        log = await FileAudit.open(tmp_path / "audit", max_bytes=2000, keep_files=10_000)
        yield log
        await log.close()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "audit"


def files_of(directory: Path) -> list[Path]:
    return sorted(directory.iterdir())


async def written(directory: Path, *numbers: int, **options: int) -> None:
    log = await FileAudit.open(directory, **options)  # type: ignore[arg-type]
    for number in numbers:
        log.record(a_deed(float(number)))
    await log.close()


async def times_in(directory: Path) -> list[float]:
    log = await FileAudit.open(directory)
    try:
        return [entry.at for entry in await all_of(log, EVERYTHING)]
    finally:
        await log.close()


@pytest.mark.anyio
class TestFiles:
    async def test_closing_writes_what_waits_and_a_restart_goes_on(self, directory: Path) -> None:
        await written(directory, *range(300))
        await written(directory, 300)
        assert await times_in(directory) == [float(number) for number in range(300, -1, -1)]
        assert [file.name for file in files_of(directory)] == ["audit-0000000001.jsonl"]
        assert json.loads(files_of(directory)[0].read_text().splitlines()[-1])["at"] == 300.0

    async def test_directory_and_files_are_private(self, directory: Path) -> None:
        directory.mkdir(mode=0o755)
        await written(directory, 1)
        files_of(directory)[0].chmod(0o644)
        await written(directory, 2)
        assert directory.stat().st_mode & 0o777 == 0o700
        assert [file.stat().st_mode & 0o777 for file in files_of(directory)] == [0o600]

    async def test_files_are_rotated_and_the_oldest_removed(self, directory: Path) -> None:
        log = await FileAudit.open(directory, max_bytes=5000, keep_files=3)
        for number in range(500):
            log.record(a_deed(float(number)))
        entries = await all_of(log, EVERYTHING)
        files = files_of(directory)
        assert len(files) == 3
        assert max(file.stat().st_size for file in files) <= 5000
        assert [entry.at for entry in entries] == [499.0 - number for number in range(len(entries))]
        assert 30 < len(entries) < 500
        await log.close()

    async def test_a_page_after_a_file_that_is_gone_is_the_last(self, directory: Path) -> None:
        log = await FileAudit.open(directory, max_bytes=3000, keep_files=2)
        for number in range(10):
            log.record(a_deed(float(number)))
        page = await log.find(Query("acme", limit=5))
        for number in range(100):
            log.record(a_deed(float(number)))
        await log.find(EVERYTHING)
        assert (await log.find(Query("acme", after=page.after))).entries == []
        await log.close()

    async def test_half_a_line_is_passed_over_and_the_next_deed_gets_its_own(self, directory: Path) -> None:
        await written(directory, 1, 2)
        (file,) = files_of(directory)
        file.write_bytes(file.read_bytes()[:-20])
        assert await times_in(directory) == [1.0]
        await written(directory, 3)
        assert await times_in(directory) == [3.0, 1.0]

    async def test_rubbish_between_lines_is_passed_over(self, directory: Path) -> None:
        await written(directory, 1)
        (file,) = files_of(directory)
        with file.open("ab") as out:
            out.write(b"\n\n{}\nnull\n" + bytes(300_000) + b"\n" + b"\xff" * 200_000)
        await written(directory, 2)
        assert await times_in(directory) == [2.0, 1.0]

    async def test_looking_for_what_is_rare_is_done_in_bounded_steps(self, directory: Path) -> None:
        log = await FileAudit.open(directory, max_bytes=5000)
        log.record(a_deed(0.0, session_id="ses_rare"))
        for number in range(1, 200):
            log.record(a_deed(float(number)))
        await log.close()
        pages = [read_page(directory, Query("acme", session_id="ses_rare"), search_bytes=2000)]
        while pages[-1].after:
            pages.append(
                read_page(directory, Query("acme", session_id="ses_rare", after=pages[-1].after), search_bytes=2000)
            )
        assert len(pages) > 5
        assert [entry.at for page in pages for entry in page.entries] == [0.0]

    @pytest.mark.parametrize("length", [1, 65_535, 65_536, 65_537])
    async def test_lines_are_found_wherever_the_blocks_end(self, tmp_path: Path, length: int) -> None:
        path = tmp_path / "lines"
        lines = [b"a" * (length % 60_000), b"", b"b" * 30_000, b"c" * 35_000, b"d", b"e" * 536, b"half"]
        path.write_bytes(b"\n".join(lines))
        with path.open("rb") as file:
            found = list(lines_before(file.fileno(), path.stat().st_size))
        starts = [len(b"\n".join([*lines[:number], b""])) if number else 0 for number in range(len(lines))]
        assert found == list(zip(starts, lines, strict=True))[::-1]

    async def test_what_it_says_of_itself(self, directory: Path) -> None:
        log = await FileAudit.open(directory)
        assert repr(log) == f"<FileAudit {directory}: 0 waiting, 0 dropped>"
        await log.close()
        log.record(a_deed())
        assert repr(log) == f"<FileAudit {directory}: closed, 1 dropped>"

    async def test_two_processes_may_add_to_one_record(self, directory: Path) -> None:
        logs = [await FileAudit.open(directory, max_bytes=3000, keep_files=1000) for _ in range(2)]
        for number in range(200):
            for which, log in enumerate(logs):
                log.record(a_deed(float(number), session_id=f"ses_{which}"))
        await asyncio.gather(*(log.find(EVERYTHING) for log in logs))
        for which in range(2):
            entries = await all_of(logs[0], Query("acme", session_id=f"ses_{which}"))
            assert sorted(entry.at for entry in entries) == [float(number) for number in range(200)]
        for log in logs:
            await log.close()


@pytest.mark.anyio
class TestThingsInTheWay:
    @pytest.mark.parametrize("kind", ["link", "dangling link", "pipe", "directory", "hard link"])
    async def test_what_is_not_a_file_of_ours_is_neither_followed_nor_written(
        self, directory: Path, tmp_path: Path, kind: str
    ) -> None:
        await written(directory, 1)
        victim = tmp_path / "victim"
        victim.write_text("precious")
        _put(kind, directory / "audit-0000000002.jsonl", victim)
        await written(directory, 2, 3)
        assert victim.read_text() == "precious"
        assert not (tmp_path / "nowhere").exists()
        assert await times_in(directory) == [3.0, 2.0, 1.0]
        assert (directory / "audit-0000000003.jsonl").is_file()

    async def test_a_link_that_appears_when_files_are_rotated_is_passed_over(
        self, directory: Path, tmp_path: Path
    ) -> None:
        log = await FileAudit.open(directory, max_bytes=1000)
        log.record(a_deed(1.0))
        await log.find(EVERYTHING)
        (directory / "audit-0000000002.jsonl").symlink_to(tmp_path / "victim")
        for number in range(2, 12):
            log.record(a_deed(float(number)))
        assert [entry.at for entry in await all_of(log, EVERYTHING)] == [float(number) for number in range(11, 0, -1)]
        assert not (tmp_path / "victim").exists()
        await log.close()

    async def test_a_directory_that_is_a_link_is_refused(self, directory: Path, tmp_path: Path) -> None:
        (tmp_path / "elsewhere").mkdir()
        directory.symlink_to(tmp_path / "elsewhere")
        with pytest.raises(Unavailable, match="cannot be kept in") as caught:
            await FileAudit.open(directory)
        assert "not a link" in caught.value.remedy

    async def test_a_directory_whose_parent_is_missing_is_refused(self, directory: Path) -> None:
        with pytest.raises(Unavailable, match="No such file"):
            await FileAudit.open(directory / "deeper")

    async def test_a_file_that_was_removed_is_made_anew(self, directory: Path) -> None:
        log = await FileAudit.open(directory)
        log.record(a_deed(1.0))
        await log.find(EVERYTHING)
        files_of(directory)[0].unlink()
        log.record(a_deed(2.0))
        assert [entry.at for entry in await all_of(log, EVERYTHING)] == [2.0]
        await log.close()

    async def test_a_directory_that_is_gone_is_told_counted_and_used_again(
        self, directory: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        log = await FileAudit.open(directory)
        directory.rmdir()
        for number in range(3):
            log.record(a_deed(float(number)))
            with pytest.raises(Unavailable, match="cannot be read"):
                await log.find(EVERYTHING)
        assert [record.message for record in caplog.records] == ["audit_not_written"]
        make_directory(directory)
        log.record(a_deed(3.0))
        newest, note = await all_of(log, EVERYTHING)
        assert newest == a_deed(3.0)
        assert (note.action, note.detail) == (DROPPED, {"count": 3, "first_at": 0.0, "last_at": 2.0})
        assert (caplog.records[-1].message, caplog.records[-1].levelno) == ("audit_written_again", logging.WARNING)
        assert caplog.records[-1].fields == {"dropped": 3}
        await log.close()


@pytest.mark.anyio
class TestChain:
    async def test_an_untouched_record_of_several_processes_and_restarts_is_whole(self, directory: Path) -> None:
        for _ in range(3):
            logs = [await FileAudit.open(directory, max_bytes=3000, keep_files=1000) for _ in range(3)]
            for number in range(40):
                for log in logs:
                    log.record(a_deed(float(number), detail={"hash": "0" * 64}))
                if number % 10 == 0:
                    await asyncio.gather(*(log.find(EVERYTHING) for log in logs))
            for log in logs:
                await log.close()
        found = verify_files(directory)
        assert (found.entries, found.unchained, found.damaged, found.problems) == (360, 0, 0, [])
        assert verify_files(directory, found.head).problems == []

    @pytest.mark.parametrize("what", ["change", "remove", "insert", "swap", "cut", "copy", "remove a file", "garble"])
    async def test_whatever_is_done_to_it_shows(self, directory: Path, what: str) -> None:
        await written(directory, *range(100), max_bytes=5000)
        head = verify_files(directory).head
        files = files_of(directory)
        assert len(files) > 3
        lines = files[1].read_bytes().splitlines(keepends=True)
        match what:
            case "change":
                lines[3] = lines[3].replace(b'"tenant":"acme"', b'"tenant":"evil"')
            case "remove":
                del lines[3]
            case "insert":
                lines.insert(3, encode_entry(a_deed(99.0)))
            case "swap":
                lines[3], lines[4] = lines[4], lines[3]
            case "copy":
                lines.insert(4, lines[3])
            case "garble":
                lines[3] = b"x" * 100 + b"\n"
        files[1].write_bytes(b"".join(lines))
        if what == "remove a file":
            files[1].unlink()
        if what == "cut":
            files[-1].unlink()
            assert verify_files(directory).problems == [], "which is why an operator keeps the head"
            assert "is not in the record" in verify_files(directory, head).problems[0]
        else:
            assert verify_files(directory).problems

    async def test_old_files_may_be_gone_and_half_a_line_is_no_change(self, directory: Path) -> None:
        await written(directory, *range(100), max_bytes=3000, keep_files=4)
        last = files_of(directory)[-1]
        with last.open("ab") as out:
            out.write(b'{"at":1,"act')
        await written(directory, 100, max_bytes=3000, keep_files=4)
        found = verify_files(directory)
        assert (found.problems, found.damaged) == ([], 1)

    async def test_entries_of_versions_without_hashes_may_stand_before_the_chain(self, directory: Path) -> None:
        directory.mkdir(mode=0o700)
        old = directory / "audit-0000000001.jsonl"
        old.write_bytes(b"".join(encode_entry(a_deed(float(number))) for number in range(5)))
        old.chmod(0o600)
        await written(directory, *range(5, 10))
        found = verify_files(directory)
        assert (found.unchained, found.entries, found.problems) == (5, 5, [])


class StuckFiles(RotatingFiles):
    """A disk that does not answer until it is allowed to."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.writing = anyio.Event()
        self.loop = asyncio.get_running_loop()
        self.may_go_on = asyncio.Event()

    def append(self, lines: Sequence[bytes]) -> Appended:
        self.loop.call_soon_threadsafe(self.writing.set)
        asyncio.run_coroutine_threadsafe(self.may_go_on.wait(), self.loop).result(30)
        return super().append(lines)


@pytest.mark.anyio
class TestFaults:
    async def test_a_disk_that_does_not_answer_stops_nobody(self, directory: Path) -> None:
        make_directory(directory)
        journal = StuckFiles(directory)
        log = FileAudit(directory, AuditWriter(journal, CommandText.REDACTED, queue_most=10))
        log.record(a_deed(0.0))
        with anyio.fail_after(30):
            await journal.writing.wait()
        for number in range(1, 101):
            log.record(a_deed(float(number)))
        assert repr(log) == f"<FileAudit {directory}: 10 waiting, 90 dropped>"
        journal.may_go_on.set()
        *kept, first = await all_of(log, EVERYTHING)
        assert first == a_deed(0.0)
        assert [entry.at for entry in kept if entry.action != DROPPED] == [float(number) for number in range(10, 0, -1)]
        (note,) = (entry for entry in kept if entry.action == DROPPED)
        assert note.detail == {"count": 90, "first_at": 11.0, "last_at": 100.0}
        await log.close()

    async def test_what_waits_is_bounded_in_size_too(self, directory: Path) -> None:
        make_directory(directory)
        journal = StuckFiles(directory)
        log = FileAudit(directory, AuditWriter(journal, CommandText.REDACTED))
        log.record(a_deed(0.0))
        with anyio.fail_after(30):
            await journal.writing.wait()
        for number in range(1000):
            values = [f"{number}-{part}-{'x' * 90}" for part in range(250)]
            log.record(a_deed(1.0, detail={"command": ["x" * 5_000_000, "y" * 5_000_000]}), values)
        assert 100 < log.dropped < 400
        journal.may_go_on.set()
        await log.close()

    async def test_a_tenant_that_fills_the_queue_takes_no_place_of_others(self, directory: Path) -> None:
        make_directory(directory)
        journal = StuckFiles(directory)
        log = FileAudit(directory, AuditWriter(journal, CommandText.REDACTED, queue_most=1000))
        log.record(a_deed(0.0))
        with anyio.fail_after(30):
            await journal.writing.wait()
        for number in range(5000):
            log.record(a_deed(float(number), tenant="loud"))
        for number in range(100):
            log.record(a_deed(float(number), tenant=f"quiet-{number % 3}"))
        journal.may_go_on.set()
        for number in range(3):
            assert len(await all_of(log, Query(f"quiet-{number}"))) in (33, 34)
        *kept, note = sorted(await all_of(log, Query("loud")), key=lambda entry: entry.action == DROPPED)
        assert len(kept) == 900
        assert note.detail == {"count": 4100, "first_at": 900.0, "last_at": 4999.0}
        assert log.dropped == 4100
        await log.close()

    async def test_many_variables_and_long_commands_hold_nobody_up(self, directory: Path) -> None:
        """Commands of one tenant, half of them with 40,000 variables, before a command of another."""
        log = await FileAudit.open(directory)
        secrets = [f"secret-{number}" for number in range(40_000)]
        command = (" ".join(secrets) * 10)[:2_900_000]
        began = time.monotonic()
        for number in range(100):
            log.record(a_deed(float(number), tenant="loud", detail={"command": command, "exit_code": 0}), secrets)
            log.record(a_deed(float(number), tenant="loud", detail={"command": command}), secrets[:256])
        log.record(a_deed(tenant="quiet", detail={"command": "ls"}))
        assert time.monotonic() - began < 5
        assert [entry.detail for entry in await all_of(log, Query("quiet"))] == [{"command": "ls"}]
        last, last_but_one, *_ = await all_of(log, Query("loud"))
        assert last.detail["command"].startswith("[redacted] [redacted] ")
        assert last.detail["command"].endswith("[cut: it had 2900000 characters]")
        assert last_but_one.detail == {"command": LEFT_OUT, "exit_code": 0}
        await log.close()
        assert time.monotonic() - began < 60
        assert log.dropped == 0

    async def test_a_stop_writes_a_long_queue_without_details_rather_than_losing_it(self, directory: Path) -> None:
        make_directory(directory)
        log = FileAudit(directory, AuditWriter(RotatingFiles(directory), CommandText.REDACTED), close_most_s=0.5)
        for number in range(1000):
            secrets = [f"{number}-{part}-{'%' * 60}" for part in range(200)]
            log.record(a_deed(float(number), detail={"command": "x -u key:" * 800}), secrets)
        began = time.monotonic()
        await log.close()
        assert time.monotonic() - began < 20
        assert log.dropped == 0
        text = files_of(directory)[0].read_text()
        assert text.count(chr(10)) == 1001
        assert '"detail":{"left_out":"the server was stopping"}' in text

    def test_a_full_disk_is_counted_and_passes(self, tmp_path: Path) -> None:
        """In a mount namespace of its own, on a file system of a few hundred kilobytes."""
        child = _child("audit_on_full_disk.py", tmp_path, before=("unshare", "-m"))
        out, _ = child.communicate(timeout=60)
        assert child.returncode == 0
        lines = out.splitlines()
        assert lines[0] == "audit_not_written"
        assert lines[-1] == "full, counted, works again"

    async def test_a_limit_on_file_sizes_is_counted_and_passes(self, directory: Path) -> None:
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        log = await FileAudit.open(directory)
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
            for number in range(20):
                log.record(a_deed(float(number)))
            kept = await all_of(log, EVERYTHING)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert 0 < len(kept) == 20 - log.dropped
        log.record(a_deed(99.0))
        newest, note, *rest = await all_of(log, EVERYTHING)
        assert (newest.at, note.detail["count"], rest) == (99.0, log.dropped, kept)
        await log.close()

    @pytest.mark.parametrize("which", range(3))
    def test_kill_9_loses_nothing_that_was_found_before(self, directory: Path, which: int) -> None:
        writer = _child("audit_writer.py", directory)
        assert writer.stdout is not None
        assert writer.stdout.readline() == "started\n"
        for _ in range(10 + 7 * which):
            assert writer.stdout.readline()
        writer.send_signal(signal.SIGKILL)
        said = writer.communicate()[0].split()
        entries = asyncio.run(_everything_in(directory))
        last = int(said[-1]) if said else 9 + 7 * which
        for number in range(last + 1):
            assert sum(entry == float(number) for entry in entries) == 20


async def _everything_in(directory: Path) -> list[float]:
    await written(directory, 10**9, keep_files=1000)
    return await times_in(directory)


def _put(kind: str, path: Path, victim: Path) -> None:
    if kind == "link":
        path.symlink_to(victim)
    elif kind == "dangling link":
        path.symlink_to(victim.parent / "nowhere")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        path.hardlink_to(victim)


def _child(program: str, path: Path, before: tuple[str, ...] = ()) -> "subprocess.Popen[str]":
    command = [*before, sys.executable, str(_PROGRAMS / program), str(path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
