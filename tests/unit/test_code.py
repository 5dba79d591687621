"""Frames of code contexts, and the executions that are made of them."""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Iterable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from busiest_turn import MAX_S, busiest_turn
from hypothesis import given, settings
from hypothesis import strategies as st

from warren.model.code import (
    MAX_VALUES,
    BadFrames,
    CellExecution,
    CellReader,
    FrameReader,
    check_not_reserved,
    find_language,
    frame,
    is_context,
    language_of,
    read_execution,
)
from warren.model.command_output import CommandOutput, output_of
from warren.model.errors import InvalidRequest, LanguageMissing, Unavailable, WarrenError
from warren.model.operations import Chunk, ExecResult, OutputStream, Reason
from warren.sandboxes.keepers import _why_not
from warren.sessions.long_values import LongList, LongObject, encode, json_pieces, resolved
from warren.sessions.operations.code import cell_events, execution_view


def execution_of(
    execution: CellExecution, pieces: Iterable[bytes], ended: ExecResult, said: str = "", lost: str | None = None
) -> CellExecution:
    """The whole execution at once."""
    reader = CellReader()
    for _ in read_execution(execution, reader, pieces):
        pass
    execution.close(reader, ended, said, lost)
    return execution


def ended(reason: Reason = Reason.EXITED, code: int = 0) -> ExecResult:
    return ExecResult(code, CommandOutput(), reason, None, 5.0, 1.0, 0, truncated=False)


def event(**values: Any) -> bytes:
    return frame("r", json.dumps(values).encode())


def end(**values: Any) -> bytes:
    return frame("x", json.dumps({"execution_count": 1, "error": None, **values}).encode())


def made_of(output: bytes, cuts: list[int] | None = None, **how: Any) -> CellExecution:
    places = [0, *sorted(cut % (len(output) + 1) for cut in cuts or []), len(output)]
    pieces = [output[begin:stop] for begin, stop in pairwise(places)]
    execution = CellExecution("cell_1", "ctx_python", "python", 3.0)
    return execution_of(execution, pieces, how.pop("ended", ended()), **how)


@given(
    st.lists(st.tuples(st.sampled_from("boercxl"), st.binary(max_size=300)), max_size=20),
    st.lists(st.integers(0, 10_000), max_size=20),
)
def test_frames_come_out_as_they_went_in_however_they_are_cut(frames: list[tuple[str, bytes]], cuts: list[int]) -> None:
    data = b"".join(frame(kind, payload) for kind, payload in frames)
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    reader = FrameReader()
    found = [one for begin, stop in pairwise(places) for one in reader.feed(data[begin:stop])]
    assert found == frames


@pytest.mark.parametrize("data", [b"q\0\0\0\0", b"o\xff\xff\xff\xff", b"\0" * 10, b"hello there"])
def test_what_is_no_frame_is_told(data: bytes) -> None:
    with pytest.raises(BadFrames):
        list(FrameReader("obx").feed(data))


_OUTPUT = b"".join(
    [
        frame("b", b""),
        frame("o", "grü".encode()[:-1]),
        event(type="result", is_main_result=False, png="aGk=", text="<Figure>"),
        frame("o", "grü".encode()[-1:] + b"n\n"),
        frame("e", b"warned\n"),
        event(type="clear_output", wait=True),
        event(type="result", is_main_result=True, text="42", json={"a": [1]}, extra={"x/y": 1}, cut=["html"]),
        end(execution_count=7),
    ]
)


@given(st.lists(st.integers(0, 10_000), max_size=20))
def test_an_execution_does_not_depend_on_how_its_output_was_cut(cuts: list[int]) -> None:
    execution = made_of(_OUTPUT, cuts)
    assert "".join(execution.stdout) == "grün\n"
    assert execution.stderr == ["warned\n"]
    assert execution.results == [
        {"is_main_result": False, "png": "aGk=", "text": "<Figure>"},
        {"is_main_result": True, "text": "42", "json": {"a": [1]}, "extra": {"x/y": 1}, "cut": ["html"]},
    ]
    assert (execution.execution_count, execution.error, execution.reason) == (7, None, "exited")
    assert not execution.truncated


@settings(max_examples=300)
@given(st.binary(max_size=2000), st.integers(0, 400), st.lists(st.integers(0, 10_000), max_size=5))
def test_garbage_gives_a_clean_execution(garbage: bytes, at: int, cuts: list[int]) -> None:
    for output in (garbage, _OUTPUT[:at] + garbage, _OUTPUT[:at] + garbage + _OUTPUT[at:], frame("r", garbage) + end()):
        execution = made_of(output, cuts)
        json.loads(encode(execution_view(execution)))


_FORGED = {
    "no JSON": b"{",
    "no object": b"[1, 2]",
    "a type that is none": b'{"type": "evil"}',
    "deep": b'{"type": "result", "json": ' + b"[" * 50_000 + b"]" * 50_000 + b"}",
    "NaN": b'{"type": "result", "json": NaN}',
    "too large a number": b'{"type": "result", "json": 1e999}',
    "too many digits": b'{"type": "result", "json": ' + b"9" * 5000 + b"}",
    "half a pair": b'{"type": "result", "text": "\\ud800"}',
    "bytes": b'{"type": "result", "text": "\xff"}',
    "many values": b'{"type": "result", "json": [' + b"1," * (2 * MAX_VALUES) + b"1]}",
    "a text that is a number": b'{"type": "result", "text": 5}',
    "a list as html": b'{"type": "result", "html": ["a"]}',
    "extra as a list": b'{"type": "result", "extra": []}',
    "main as a text": b'{"type": "result", "is_main_result": "yes"}',
    "cut as a text": b'{"type": "result", "cut": "text"}',
    "wait as a text": b'{"type": "clear_output", "wait": "no"}',
}


@pytest.mark.parametrize("forged", _FORGED.values(), ids=_FORGED)
def test_a_forged_event_is_left_out_and_counted(forged: bytes) -> None:
    good = event(type="result", is_main_result=True, text="good")
    execution = made_of(good + frame("r", forged) + frame("o", b"after") + end())
    assert [result["text"] for result in execution.results] == ["good"]
    assert (execution.stdout, execution.dropped_events, execution.truncated) == (["after"], 1, True)
    assert execution.reason == "exited"


@pytest.mark.parametrize(
    "forged", [{"execution_count": -1}, {"execution_count": "1"}, {"execution_count": True}, {"error": "oh"},
               {"error": {"name": 1, "value": "", "traceback": ""}}, {"error": {"name": "x"}}],
)  # fmt: skip
def test_a_forged_end_is_an_end_all_the_same(forged: dict[str, Any]) -> None:
    execution = made_of(frame("o", b"text") + end(**forged))
    assert (execution.stdout, execution.reason, execution.dropped_events) == (["text"], "exited", 1)


def test_what_the_keeper_dropped_is_told() -> None:
    execution = made_of(frame("c", b"text 1000") + frame("c", b"events 3") + frame("c", b"x") + end())
    assert (execution.dropped_text, execution.dropped_events, execution.truncated) == (1000, 3, True)


@pytest.mark.parametrize(
    ("reason", "code", "lost", "output", "expected", "error"),
    [
        (Reason.EXITED, 0, None, end(), "exited", None),
        (Reason.TIMEOUT, 0, None, end(), "timeout", "TimeoutError"),
        (Reason.TIMEOUT, 137, "killed", frame("l", b"signal 9"), "timeout", "TimeoutError"),
        (Reason.EXITED, 70, "oom", frame("l", b"signal 9"), "context_lost", "ContextLost"),
        (Reason.REFUSED, 126, None, b"", "refused", "CommandRefused"),
        (Reason.SANDBOX_LOST, -1, None, frame("b", b""), "sandbox_lost", "SandboxLost"),
        (Reason.CANCELLED, 143, None, frame("b", b""), "cancelled", "Cancelled"),
        (Reason.SIGNAL, 137, None, frame("b", b""), "cancelled", "Cancelled"),
    ],
)
def test_how_a_cell_ended(
    reason: Reason, code: int, lost: str | None, output: bytes, expected: str, error: str | None
) -> None:
    execution = made_of(output, ended=ended(reason, code), said="why", lost=lost)
    assert (execution.reason, execution.context_lost) == (expected, lost)
    assert (execution.error.name if execution.error else None) == error


def test_many_tiny_pieces_become_few() -> None:
    reader, execution = CellReader(), CellExecution("cell_1", "ctx_bash", "bash")
    for piece in [frame("o", b"x") * 1000] * 50:
        for one in reader.events(piece):
            if one is not None:
                execution.add(one)
    assert len(execution.stdout) < 1100
    assert "".join(execution.stdout) == "x" * 50_000


@pytest.mark.anyio
async def test_text_waits_for_the_end_of_its_line_only_a_moment_after_its_first_piece() -> None:
    class Dots:
        async def output(self) -> AsyncIterator[Chunk]:
            at = 0
            for text in (b"", b"a", b"b\n", b"1 %\r", *[b"."] * 100):
                data = frame("o" if text else "b", text)
                yield Chunk(OutputStream.STDOUT, at, data)
                at += len(data)
                await asyncio.sleep(0.02 if text == b"." else 0)

    call = SimpleNamespace(context=SimpleNamespace(keepalive_s=10.0))
    execution = CellExecution("cell_1", "ctx_bash", "bash")
    events = cell_events(call, Dots(), execution, CellReader(), line_s=0.3)  # type: ignore[arg-type]
    texts = list[str]()
    async for one in events:
        if one is not None and one.kind == "stdout":
            texts.append(one.values["text"])
            if texts[-1].startswith("."):
                break
    await events.aclose()
    assert texts[:2] == ["ab\n", "1 %\r"]
    assert len(texts[2]) < 90  # more would have come


def test_frames_of_text_that_follow_each_other_are_joined_when_there_are_many() -> None:
    read = FrameReader()
    found = list(read.feed(frame("o", b"x") * 1000 + (frame("o", b"x") * 500 + frame("e", b"y") * 500) * 2))
    assert [kind for kind, _ in found] == [*"o" * 1000, *"oeoe"]
    assert (found[0].data, found[-2].data, found[-1].data) == (b"x", b"x" * 500, b"y" * 500)
    half = frame("o", b"x" * 70)[:40]
    assert list(read.feed(frame("o", b"x") * 3 + half)) == [("o", b"xxx")]
    with pytest.raises(BadFrames):
        list(read.feed(frame("o", b"x" * 70)[40:] + b"?" * 5))


def test_many_worthless_events_are_counted_and_not_looked_at() -> None:
    found = made_of(frame("r", b"{}") * 5000 + event(type="result", text="late") + end())
    assert (found.results, found.dropped_events, found.execution_count) == ([], 5001, 1)


def test_more_than_there_is_room_for_is_dropped() -> None:
    execution = CellExecution("cell_1", "ctx_bash", "bash", room=100)
    output = frame("o", b"x" * 90) + frame("o", b"y" * 20) + event(type="result", text="z" * 50) + end()
    execution_of(execution, [output], ended())
    assert (execution.stdout, execution.results) == (["x" * 90], [])
    assert (execution.dropped_text, execution.dropped_events, execution.execution_count) == (20, 1, 1)


def test_a_cell_gives_so_many_values_in_all_its_results() -> None:
    """Each takes far more memory than its bytes."""
    many = event(type="result", json=[{}] * (MAX_VALUES // 4))
    found = made_of(many * 4 + event(type="clear_output", wait=True) + event(type="result", text="1") + end())
    assert (len(found.results), found.dropped_events) == (4, 1)
    assert found.results[-1]["text"] == "1"
    found = made_of(event(type="result", png="") * (MAX_VALUES + 1) + end())
    assert len(found.results) <= MAX_VALUES // 2
    assert len(found.results) + found.dropped_events == MAX_VALUES + 1


@pytest.mark.anyio
async def test_results_from_a_stranger_hold_up_nobody() -> None:
    """Neither while they are read, nor while they are written."""
    numbers = b'{"type":"result","json":[%s]}' % b",".join([b"9" * 4000] * 2000)
    inner = {"type": "result", "extra": {"text/x": "\u20ac" * 1_500_000}, "json": ["\u20ac" * 1000] * 1500}
    for payload, count in ((numbers, 0), (json.dumps(inner, ensure_ascii=False).encode(), 1)):
        output = frame("r", payload)
        pieces = [output[at : at + 65536] for at in range(0, len(output), 65536)]
        execution, reader = CellExecution("cell_1", "ctx_python", "python"), CellReader()
        async with busiest_turn() as busiest:
            for _ in read_execution(execution, reader, pieces):
                await asyncio.sleep(0)
            shown = [piece async for piece in json_pieces(execution_view(execution))]
        assert len(execution.results) == count
        assert busiest.seconds < MAX_S
        assert json.loads(b"".join(shown))["results"] == execution.results


@pytest.mark.anyio
async def test_a_long_text_deep_in_a_result_is_written_in_pieces() -> None:
    deep = {"json": [{"a": ["\u20ac" * 10_000_000]}]}
    async with busiest_turn() as busiest:
        size = sum([len(piece) async for piece in json_pieces({"results": LongList([LongObject(deep)])})])
    assert size > 60_000_000
    assert busiest.seconds < MAX_S


def test_languages_and_ids() -> None:
    assert {find_language(name).name for name in ("python", "python3", "py")} == {"python"}
    assert [find_language(name).name for name in ("js", "shell", "R", "java")] == ["javascript", "bash", "r", "java"]
    with pytest.raises(InvalidRequest, match="python, javascript, bash, r"):
        find_language("cobol")
    for name in ("ctx_python", "ctx_r_0123abcd", "ctx_java", "ctx_java_0123abcd"):
        assert is_context(name)
        with pytest.raises(InvalidRequest):
            check_not_reserved(name)
    for name in ("ctx_cobol", "ctx_python_0123ABCD", "ctx_python_0123abcde", "ctx_python\n", "", "python", "ctx_"):
        assert not is_context(name)
        assert language_of(name) is None
    check_not_reserved("ctx_mine")


def test_the_code_is_what_is_judged() -> None:
    assert find_language("python").judged_as("1") == ("python3", "-c", "1")
    assert find_language("js").judged_as("1") == ("node", "-e", "1")
    assert find_language("bash").judged_as("") == ":"
    assert find_language("bash").judged_as("ls | wc") == "ls | wc"


def test_long_executions_are_shown_in_pieces_and_mean_the_same() -> None:
    chance = random.Random(1)
    png = "".join(chance.choices("abcdef", k=200_000))
    output = frame("o", b"line\n" * 20_000) + event(type="result", png=png, json=[1, {"a": 2}]) + end()
    shown = execution_view(made_of(output))

    async def whole() -> tuple[Any, Any]:
        return json.loads(b"".join([piece async for piece in json_pieces(execution_view(made_of(output)))])), (
            await resolved(shown)
        )

    over_http, local = asyncio.run(whole())
    assert over_http == local
    assert over_http["results"] == [{"is_main_result": False, "png": png, "json": [1, {"a": 2}]}]
    assert "".join(over_http["logs"]["stdout"]) == "line\n" * 20_000


@pytest.mark.parametrize(
    ("code", "stderr", "kind", "words"),
    [
        (127, "Rscript: not found", LanguageMissing, "the image small has no Rscript, which code in r needs"),
        (1, "Error: cannot allocate memory", Unavailable, "cannot allocate memory"),
    ],
)
def test_why_a_context_does_not_start(code: int, stderr: str, kind: type[WarrenError], words: str) -> None:
    result = ExecResult(code, output_of(stderr=stderr), Reason.EXITED, None, 5.0, 1.0, 0, truncated=False)
    why = _why_not(find_language("r"), result, "small")
    assert type(why) is kind
    assert words in why.message


def test_a_language_may_need_a_version_of_its_program() -> None:
    result = ExecResult(127, output_of(), Reason.EXITED, None, 5.0, 1.0, 0, truncated=False)
    why = _why_not(find_language("ts"), result, "small")
    assert why.message == "the image small has no Node 22.13 or later, which code in typescript needs"
