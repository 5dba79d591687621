"""Texts, results and the blame for running out of memory: pure functions, by table."""

import pytest

from warren.model.command_output import CommandOutput
from warren.model.errors import ProtocolError
from warren.model.operations import Command, ProcessStatus, Reason, TerminalSize
from warren.sandboxes.agent.agent_errors import printable
from warren.sandboxes.agent.channel import Output
from warren.sandboxes.agent.command_result import (
    REMEMBERED,
    OomTracker,
    base_env_fields,
    exec_result,
    lost_result,
    start_payload,
)
from warren.sandboxes.agent.wire import Flag, WireEnd, WireFields, WireTag, fields

OUT, ERR, TERMINAL = 1, 2, 3


def written(outputs: list[Output], total: int = 0) -> CommandOutput:
    made = CommandOutput()
    for output in outputs:
        made.add(*output)
    made.total = max(made.total, total)
    return made


def end(**values: int) -> WireFields:
    return WireFields(fields([(WireTag[name.upper()], value) for name, value in values.items()]))


@pytest.mark.parametrize(
    ("outputs", "total", "expected"),
    [
        ([], 0, ("", "", "")),
        ([], 9, ("", "", "\n[... 9 bytes not kept ...]\n")),
        ([Output(OUT, 0, b"a"), Output(OUT, 1, b"b")], 2, ("ab", "", "ab")),
        ([Output(ERR, 0, b"a")], 1, ("", "a", "a")),
        ([Output(TERMINAL, 0, b"a")], 1, ("a", "", "a")),
        ([Output(OUT, 0, b"a"), Output(ERR, 1, b"b"), Output(OUT, 2, b"c")], 3, ("ac", "b", "abc")),
        ([Output(OUT, 0, b"\xc3"), Output(OUT, 1, b"\xa4")], 2, ("ä", "", "ä")),
        ([Output(OUT, 0, b"\xc3"), Output(ERR, 1, b"!"), Output(OUT, 2, b"\xa4")], 3, ("ä", "!", "!ä")),
        (
            [Output(OUT, 0, b"head"), Output(OUT, 1_234_571, b"tail")], 1_234_575,
            ("head\n[... 1,234,567 bytes not kept ...]\ntail", "", "head\n[... 1,234,567 bytes not kept ...]\ntail"),
        ),
        (
            [Output(OUT, 0, b"\xc3"), Output(OUT, 5, b"\xa4")], 6,
            ("�\n[... 4 bytes not kept ...]\n�", "", "�\n[... 4 bytes not kept ...]\n�"),
        ),
        ([Output(OUT, 0, b"a")], 3, ("a\n[... 2 bytes not kept ...]\n", "", "a\n[... 2 bytes not kept ...]\n")),
    ],
)  # fmt: skip
def test_texts(outputs: list[Output], total: int, expected: tuple[str, str, str]) -> None:
    assert written(outputs, total).texts() == expected


def test_a_result_says_everything() -> None:
    said = end(exit_code=143, reason=WireEnd.TIMEOUT, signal=15, duration_us=1500, cpu_us=200, bytes=3, killed=4)
    result = exec_result(said, written([Output(OUT, 0, b"abc")]), "p_1", None)
    assert (result.exit_code, result.reason, result.signal, result.killed) == (143, Reason.TIMEOUT, 15, 4)
    assert (result.duration_ms, result.cpu_ms, result.bytes_total, result.truncated) == (1.5, 0.2, 3, False)
    assert exec_result(end(bytes=4), written([Output(OUT, 0, b"abc")]), "p", None).truncated


@pytest.mark.parametrize(
    ("said", "outputs"),
    [
        ({"exit_code": 256}, []),
        ({"reason": 9}, []),
        ({"bytes": 2}, [Output(OUT, 0, b"abc")]),
        ({"bytes": 3}, [Output(OUT, 1, b"abc")]),
    ],
)
def test_a_result_that_cannot_be_is_a_protocol_error(said: dict[str, int], outputs: list[Output]) -> None:
    with pytest.raises(ProtocolError):
        exec_result(end(**said), written(outputs), "p", None)


def ran_out() -> OomTracker:
    """Of the command `p`."""
    kills = [0]
    tracker = OomTracker(lambda: kills[0])
    tracker.begin("p")
    kills[0] = 1
    return tracker


def test_a_time_out_stays_a_time_out_even_without_memory() -> None:
    assert exec_result(end(exit_code=137, reason=WireEnd.TIMEOUT), written([]), "p", ran_out()).reason is Reason.TIMEOUT
    assert exec_result(end(exit_code=137, reason=WireEnd.SIGNAL), written([]), "p", ran_out()).reason is Reason.OOM


def test_a_lost_sandbox_is_a_result_with_the_reason() -> None:
    result = lost_result("it burned", "p_1")
    assert (result.reason, result.exit_code, result.stderr) == (Reason.SANDBOX_LOST, -1, "it burned")


def test_a_command_becomes_the_fields_of_a_start() -> None:
    payload = start_payload(Command(shell="x", env={"A": "2"}), "p", base_env_fields({"B": "1"}), int(Flag.DEFER))
    found = WireFields(payload)
    assert found.number(WireTag.FLAGS) == Flag.DEFER | Flag.CARRY
    assert (found.text(WireTag.ENV), found.text(WireTag.BASE_ENV)) == ("A=2", "B=1")
    assert not WireFields(start_payload(Command(argv=("x",)), "p", b"", 0)).number(WireTag.FLAGS)
    terminal = WireFields(start_payload(Command(shell="x", terminal=TerminalSize(5, 6), timeout_s=0.0001), "p", b"", 0))
    assert (terminal.number(WireTag.ROWS), terminal.number(WireTag.COLS), terminal.number(WireTag.TIMEOUT_MS)) == (
        5,
        6,
        1,
    )


@pytest.mark.parametrize(
    ("rose", "others", "code", "signal", "blamed"),
    [
        (False, False, 137, 9, False),
        (True, False, 137, 9, True),
        (True, False, 137, None, True),
        (True, False, 1, None, True),
        (True, False, 0, None, False),
        (True, True, 1, None, False),
        (True, True, 137, 9, True),
    ],
)
def test_who_ran_out_of_memory(rose: bool, others: bool, code: int, signal: int | None, blamed: bool) -> None:
    kills = [0]
    tracker = OomTracker(lambda: kills[0])
    tracker.begin("it")
    if others:
        tracker.begin("other")
    kills[0] += rose
    assert tracker.end("it", code, signal) is blamed
    kills[0] += 1
    assert tracker.end("it", code, signal) is blamed


def test_a_context_that_waits_does_not_hide_who_ran_out_of_memory() -> None:
    kills = [0]
    tracker = OomTracker(lambda: kills[0])
    tracker.begin("ctx_python")
    tracker.begin("it")
    kills[0] = 1
    assert tracker.end("it", 1, None)
    tracker.begin("cell_1")
    kills[0] = 2
    assert tracker.end("ctx_python", 137, None)


def test_a_command_of_an_earlier_server_is_followed_from_the_first_look_on() -> None:
    kills = [3]
    tracker = OomTracker(lambda: kills[0])

    def look(**running: bool) -> None:
        tracker.adopt([found(name, runs) for name, runs in running.items()])

    look(ctx_python=True, ctx_bash=True, ended=False)
    kills[0] += 1
    look(ctx_python=False, ctx_bash=True, ended=False)
    assert (tracker.end("ctx_python", 137, None), tracker.end("ctx_bash", 137, None)) == (True, True)
    kills[0] += 1
    assert (tracker.end("ended", 137, None), tracker.end("never seen", 137, 9)) == (False, False)
    look()
    assert tracker._adopted == {}


def found(name: str, runs: bool) -> ProcessStatus:
    return ProcessStatus(name, "", "", runs, False, 7, 0, False, 1.0, None if runs else 137)


def test_untrusted_text_is_made_printable() -> None:
    assert printable("a\x1b[0m\n\udcff") == r"a\x1b[0m\n\udcff"


def test_commands_that_ended_long_ago_are_forgotten() -> None:
    tracker = OomTracker(lambda: 0)
    for number in range(3 * REMEMBERED):
        tracker.begin(f"p{number}")
        tracker.end(f"p{number}", 0, None)
    assert tracker.running == 0
    assert len(tracker._results) == REMEMBERED
