"""The logs of sessions without a server: text without secrets, files that a crash has cut, bounds, quotas, expiry."""

import asyncio
import base64
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warren.governance.audit.redaction import forms_of
from warren.governance.session_logs.entries import CommandLogs, NewEntry, OutputPart
from warren.governance.session_logs.files import LogFiles
from warren.governance.session_logs.logs import LogRules, Logs
from warren.governance.session_logs.texts import StreamText
from warren.governance.session_logs.writer import LogWriter
from warren.model.command_output import CommandOutput, Piece
from warren.model.environment import Environment
from warren.model.errors import SessionNotFound, Unavailable
from warren.model.session import Session, SessionState
from warren.model.session_log import LogLevel, strongest
from warren.model.spec import MIB
from warren.stores.memory import MemoryStore
from warren.testing.manual_clock import ManualClock

NAME = ("acme", "ses_1")
SECRET = "hunter2-hunter2"


def note(text: str) -> dict[str, Any]:
    return {"at": "2026-01-01T00:00:00.000Z", "kind": "note", "text": text}


def output(text: str) -> dict[str, Any]:
    return {"at": "2026-01-01T00:00:00.000Z", "kind": "output", "stream": "stdout", "text": text}


def new(event: str = "started", **more: Any) -> NewEntry:
    return NewEntry(*NAME, LogLevel.OUTPUT, 1.0, "command", "p_1", event, **more)


# -- texts


@given(st.lists(st.integers(0, 60), max_size=6), st.booleans())
def test_a_value_is_removed_however_the_output_is_cut(cuts: list[int], wait: bool) -> None:
    whole = f"begin {SECRET} middle hunter2-hunte é {SECRET}\nend".encode()
    places = sorted({0, len(whole), *(cut % len(whole) for cut in cuts)})
    text = StreamText(forms_of([SECRET]))
    shown = "".join(text.add(whole[a:b], wait=wait) for a, b in pairwise(places))
    assert shown + text.finish() == "begin [redacted] middle hunter2-hunte é [redacted]\nend"


def test_a_value_that_a_shell_has_coded_is_removed() -> None:
    for value in ("hunter2", "hunter23", "hunter234"):
        text = StreamText(forms_of([value]))
        coded = base64.b64encode(f"{value}\n".encode())
        assert text.add(b"x " + coded + b" y").startswith("x [redacted]")


def test_where_output_is_missing_no_part_of_a_value_stays() -> None:
    text = StreamText(forms_of([SECRET]))
    assert text.add(b"a hunter2-h") + text.skip() == "a [redacted]"
    assert text.add(b"2-hunter2 b") == "[redacted] b"


def test_tokens_and_private_keys_are_removed_without_being_known() -> None:
    text = StreamText()
    assert text.add(b"key AKIAIOSFODNN7EXAMPLE.\n") == "key [redacted].\n"
    assert text.add(b"-----BEGIN RSA PRIVATE KEY-----\nabc\n") == "[redacted]"
    assert text.add(b"def\n-----END RSA PRIVATE KEY-----\nafter\n") == "[redacted]\nafter\n"


def test_a_line_waits_for_its_end_but_not_for_ever() -> None:
    text = StreamText()
    assert text.add(b"one\ntw", wait=True) == "one\n"
    assert text.add(b"o", wait=False) == "two"


# -- entries


def test_what_is_missing_is_said_with_the_text_behind_it() -> None:
    logs = CommandLogs()
    part = OutputPart([Piece(1, 0, b"head\n"), Piece(1, 100, b"tail\n")], 0, 105)
    head, tail = logs.entries_of(new("", output=part))
    assert (head["text"], "missing" in head) == ("head\n", False)
    assert (tail["text"], tail["missing"], tail["until"]) == ("tail\n", 95, 105)


def test_streams_that_take_turns_too_often_are_grouped() -> None:
    pieces = [Piece(1 + number % 2, number, b"ab"[number % 2 : number % 2 + 1]) for number in range(1000)]
    first, second = CommandLogs().entries_of(new("", output=OutputPart(pieces, 0, 1000)))
    assert (first["stream"], first["text"], second["stream"], second["text"]) == (
        "stdout", "a" * 500, "stderr", "b" * 500,
    )  # fmt: skip
    assert "missing" not in {**first, **second}


def test_of_a_kept_output_the_ends_are_taken() -> None:
    written = CommandOutput()
    for number in range(1000):
        written.add(1, number * 1024, bytes([65 + number % 26]) * 1024)
    ends = written.ends(64 * 1024)
    assert ends.kept < 3 * 64 * 1024
    entries = list(CommandLogs().entries_of(new("", output=OutputPart(ends, 0, written.total))))
    assert sum(len(one["text"]) for one in entries) == 2 * 64 * 1024
    assert sum(one.get("missing", 0) for one in entries) == 1000 * 1024 - 2 * 64 * 1024


def test_with_too_many_variables_no_text_is_kept() -> None:
    entry = new(command=f"echo {SECRET}", cwd=f"/{SECRET}", secrets=tuple(f"value-{n}" for n in range(300)))
    entry.measure()
    [shown] = CommandLogs().entries_of(entry)
    assert SECRET not in str(shown)
    assert list(CommandLogs().entries_of(replace(entry, event="", output=OutputPart([Piece(1, 0, b"x")], 0, 1)))) == []


def test_texts_of_commands_can_be_left_out() -> None:
    [shown] = CommandLogs(with_text=False).entries_of(new(command="ls"))
    assert "command" not in shown


def test_the_strongest_level_holds() -> None:
    assert strongest(LogLevel.OFF, None, LogLevel.COMMANDS) is LogLevel.COMMANDS
    assert strongest(LogLevel.OUTPUT, LogLevel.COMMANDS) is LogLevel.OUTPUT
    assert strongest(None) is LogLevel.OFF


# -- files


def texts(files: LogFiles, after: int = 0, **how: Any) -> list[str]:
    return [one["text"] for one in files.read(NAME, after, 10_000, **how).entries]


def test_entries_have_numbers_that_go_on_after_a_restart(tmp_path: Path) -> None:
    files = LogFiles(tmp_path, MIB, note)
    files.append(NAME, [note("a"), note("b")])
    files.close()
    again = LogFiles(tmp_path, MIB, note)
    assert again.append(NAME, [note("c")]).last == 3
    assert [one["id"] for one in again.read(NAME, 0, 10).entries] == [1, 2, 3]
    assert texts(again, 1) == ["b", "c"]
    found = again.read(NAME, 0, 2)
    assert (found.next, found.more) == (2, True)
    assert [one["text"] for one in again.read(NAME, 0, 10, last=2).entries] == ["b", "c"]
    assert (tmp_path / NAME[0] / NAME[1] / "000000000001.jsonl").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("torn", [b'{"id":3,"at":"20', b"\0\0\0", b'{"id":3}'])
def test_a_line_that_a_crash_has_cut_is_no_entry(tmp_path: Path, torn: bytes) -> None:
    files = LogFiles(tmp_path, MIB, note)
    files.append(NAME, [note("a"), note("b")])
    files.close()
    [path] = (tmp_path / NAME[0] / NAME[1]).iterdir()
    path.write_bytes(path.read_bytes() + torn)
    again = LogFiles(tmp_path, MIB, note)
    assert texts(again) == ["a", "b"]
    again.append(NAME, [note("c")])
    assert texts(again) == ["a", "b", "c"]


def test_full_files_are_compressed_and_what_a_crash_left_is_removed(tmp_path: Path) -> None:
    files = LogFiles(tmp_path, MIB, note, segment_bytes=4096)
    for number in range(200):
        files.append(NAME, [note(f"{number} " + "x" * 100)])
    folder = tmp_path / NAME[0] / NAME[1]
    compressed = sorted(folder.glob("*.zst"))
    assert len(compressed) > 3
    assert len(texts(files)) == 200
    assert texts(files, 150)[0].startswith("150 ")
    files.close()
    (folder / "000000000001.new").write_bytes(b"half")
    compressed[0].with_suffix("").write_bytes(b"it was compressed, and not yet removed")
    again = LogFiles(tmp_path, MIB, note, segment_bytes=4096)
    assert again.append(NAME, [note("new")]).last == 201
    assert sorted(folder.glob("*.zst")) == compressed
    assert len(list(folder.iterdir())) == len(compressed) + 1
    assert len(texts(again)) == 201


def test_a_log_that_is_too_long_loses_its_oldest_output_first(tmp_path: Path) -> None:
    import random

    some = random.Random(1)
    files = LogFiles(tmp_path, 128 * 1024, note, segment_bytes=16384)
    for number in range(300):
        data = some.randbytes(500).hex()
        written = files.append(NAME, [note(f"command {number}"), output(data)])
        assert written.bytes <= 128 * 1024 + 16384
    entries = files.read(NAME, 0, 10_000).entries
    assert [one["id"] for one in entries] == sorted({one["id"] for one in entries})
    kept = [one["text"] for one in entries if one["kind"] == "note"]
    assert [text for text in kept if text.startswith("command")] == [f"command {number}" for number in range(300)]
    assert any("entries of output were removed" in text for text in kept)
    assert entries[-1]["kind"] == "output"


def test_a_log_of_commands_alone_loses_its_oldest_entries(tmp_path: Path) -> None:
    import random

    some = random.Random(1)
    files = LogFiles(tmp_path, 32 * 1024, note, segment_bytes=4096)
    for number in range(300):
        files.append(NAME, [note(f"{number} {some.randbytes(300).hex()}")])
    kept = texts(files)
    assert kept[-1].startswith("299 ")
    assert not kept[0].startswith("0 ")
    assert any("the oldest" in text for text in kept)


def test_what_compresses_well_takes_no_more_files_and_no_longer_looks_than_other_logs(tmp_path: Path) -> None:
    files = LogFiles(tmp_path, 64 * 1024, note)
    for number in range(1500):
        files.append(NAME, [output("a" * 8192), note(str(number))])
    used = [path.stat() for path in (tmp_path / NAME[0] / NAME[1]).iterdir()]
    assert sum(each.st_blocks * 512 for each in used) <= 80 * 1024
    files.close()
    roomy = LogFiles(tmp_path / "roomy", 10 * MIB, note)
    for _ in range(40):
        roomy.append(NAME, [output("a" * MIB)])
    roomy.append(NAME, [note("the last")])
    pages, found = 1, roomy.read(NAME, 0, 10, ("note",))
    while found.more and pages < 10:
        assert found.entries == []
        pages, found = pages + 1, roomy.read(NAME, found.next, 10, ("note",))
    assert (pages, [one["text"] for one in found.entries]) == (3, ["the last"])
    assert roomy.read(NAME, 0, 10, ("command",), last=5).entries == []


def test_what_the_disk_does_not_take_is_not_there_in_part(tmp_path: Path) -> None:
    files = LogFiles(tmp_path, MIB, note, min_free=1 << 60)
    with pytest.raises(OSError, match="nearly full"):
        files.append(NAME, [note("a")])
    assert texts(files) == []


def test_a_deleted_log_goes_on_with_its_numbers(tmp_path: Path) -> None:
    files = LogFiles(tmp_path, MIB, note)
    files.append(NAME, [note("a")])
    files.delete(NAME)
    assert (texts(files), list(files.names())) == ([], [])
    assert files.append(NAME, [note("b")]).last == 2


# -- the writer


def test_what_does_not_fit_is_counted_in_the_log(tmp_path: Path) -> None:
    files = LogFiles(tmp_path, MIB, note)
    writer = LogWriter(files, CommandLogs(), queue_most=10)
    for _ in range(50):
        writer.add(new(command="ls"))
    writer.close(30)
    entries = files.read(NAME, 0, 100).entries
    [told] = [one["text"] for one in entries if one["kind"] == "note"]
    assert told == f"{50 - (len(entries) - 1)} entries were not kept: too many came at once"
    assert 10 <= len(entries) - 1 < 50


# -- the logs of a process


class World:
    def __init__(self, path: Path, **how: Any) -> None:
        self.clock = ManualClock()
        self.store = MemoryStore()
        self.path = path
        self.bound: int | None = None
        self.logs = self.start(**how)

    def start(self, **how: Any) -> Logs:
        async def bound_of(session: Session) -> int | None:
            return self.bound

        given: dict[str, Any] = {"rules": LogRules(retention_s=1000.0), "bound_of": bound_of, **how}
        return Logs(self.path, self.store.records, self.store.get, self.clock, **given)

    def session(self, session_id: str = "ses_1", tenant: str = "acme") -> Session:
        return Session(session_id, tenant, "base", self.clock.epoch, 0.0, 0.0, 0.0, logs="output")

    def add(self, session: Session, data: bytes = b"") -> None:
        part = OutputPart([Piece(1, 0, data)], 0, len(data)) if data else None
        entry = new("ended", output=part, is_last=True)
        entry.tenant, entry.session_id = session.tenant, session.id
        self.logs.add(entry, session)

    async def settle(self) -> None:
        await self.logs.flush()
        await asyncio.sleep(0.05)
        await self.logs.save_changes(all_of_them=True)


@pytest.fixture
def world(tmp_path: Path) -> Callable[..., World]:
    return lambda **how: World(tmp_path / "logs", **how)


@pytest.mark.anyio
async def test_a_log_expires_after_its_session_has_ended(world: Callable[..., World]) -> None:
    here = world()
    session = here.session()
    await here.store.add(session)
    here.add(session)
    await here.settle()
    await here.clock.advance(4000.0)
    await here.logs.expire()  # it looks whether the session has ended
    page = await here.logs.read("acme", session.id)
    assert (len(page.entries), page.ended) == (1, False)
    assert await here.store.swap(session.moved_to(SessionState.ENDED, ended=here.clock.now()))
    await here.clock.advance(4000.0)
    await here.logs.expire()
    page = await here.logs.read("acme", session.id)
    assert (len(page.entries), page.ended) == (1, True)
    assert page.record is not None
    assert page.record.expires_at == here.clock.wall() + 1000.0
    await here.clock.advance(1001.0)
    await here.logs.expire()
    assert (await here.logs.read("acme", session.id)).entries == []
    assert (await here.logs.used_bytes("acme"), list(here.path.rglob("*.jsonl"))) == (0, [])
    await here.logs.close()


@pytest.mark.anyio
async def test_a_quota_leaves_out_output_and_then_everything_and_says_so(world: Callable[..., World]) -> None:
    here = world()
    session = here.session()
    await here.store.add(session)
    here.bound = 200 * 1024
    for _ in range(3):
        here.add(session, b"x" * 50_000)
    await here.settle()
    here.add(session, b"not kept")
    await here.settle()
    entries = (await here.logs.read("acme", session.id, limit=100)).entries
    assert "output is not kept" in entries[-2]["text"]
    assert entries[-1]["event"] == "ended"
    here.bound = 1000
    await here.clock.advance(11.0)
    here.add(session)
    await here.settle()
    here.add(session)
    await here.settle()
    assert "nothing is kept" in (await here.logs.read("acme", session.id, last=1)).entries[0]["text"]
    assert await here.logs.used_bytes(None) > 100_000
    await here.logs.close()


@pytest.mark.anyio
async def test_logs_without_a_record_are_found_and_others_removed(world: Callable[..., World]) -> None:
    here = world()
    live, gone = here.session(), here.session("ses_2")
    await here.store.add(live)
    here.add(live)
    here.add(gone)
    await here.logs.flush()
    assert here.logs.files is not None
    here.logs.files.close()
    again = here.logs = here.start()  # the one before was killed before it could save the records
    await again.sweep()
    page = await again.read("acme", live.id)
    assert (len(page.entries), page.level) == (1, LogLevel.OUTPUT)
    assert page.record is not None
    assert not list(here.path.rglob("ses_2"))
    assert await again.used_bytes("acme") == page.record.bytes > 0
    await again.close()


@pytest.mark.anyio
async def test_a_log_belongs_to_its_tenant_and_its_worker(world: Callable[..., World]) -> None:
    here = world(place="one")
    session = here.session()
    await here.store.add(session)
    here.add(session)
    await here.settle()
    for tenant, session_id in (("other", session.id), ("acme", "ses_9"), ("acme", "../acme/ses_1"), ("acme", "..")):
        with pytest.raises(SessionNotFound):
            await here.logs.read(tenant, session_id)
        with pytest.raises(SessionNotFound):
            await here.logs.delete(tenant, session_id)
    elsewhere = here.start(place="two")
    with pytest.raises(Unavailable, match="'one'"):
        await elsewhere.read("acme", session.id)
    with pytest.raises(Unavailable):
        await elsewhere.delete("acme", session.id)
    assert len((await here.logs.read("acme", session.id)).entries) == 1
    await elsewhere.close()
    await here.logs.close()


@pytest.mark.anyio
async def test_waiting_ends_when_something_comes(world: Callable[..., World]) -> None:
    here = world()
    session = here.session()
    await here.store.add(session)
    waiting = asyncio.ensure_future(here.logs.wait("acme", session.id, 0, 60.0))
    await asyncio.sleep(0)
    here.add(session)
    await waiting
    await here.logs.wait("acme", session.id, 0, 60.0)  # there is something already
    await here.logs.wait("acme", session.id, 1, 0.01)
    await here.logs.close()


def test_an_environment_says_the_least_that_is_kept() -> None:
    assert Environment("base", "base", logs="commands").logs == "commands"
