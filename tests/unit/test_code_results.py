"""What running code gives, as programs and notebooks read it."""

import base64
import json
from pathlib import Path

import pytest

from warren import CodeContext, Execution, OutputMessage, Result
from warren.model.errors import InvalidRequest
from warren.sdk.code_results import ExecutionBuilder

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n of a chart").decode()
ENDED = {
    "id": "cell_0123456789ab",
    "context_id": "ctx_python",
    "language": "python",
    "error": None,
    "execution_count": 3,
    "reason": "exited",
    "context_lost": None,
    "duration_ms": 12.5,
    "truncated": False,
    "dropped": {"text": 0, "events": 0},
}


def test_events_add_up_to_the_execution_that_the_server_would_have_answered_with() -> None:
    builder = ExecutionBuilder()
    given = [
        builder.add(name, values)
        for name, values in (
            ("started", {"id": "cell_0123456789ab", "context_id": "ctx_python", "language": "python"}),
            ("stdout", {"text": "one\n"}),
            ("stderr", {"text": "two\n"}),
            ("clear_output", {"wait": True}),
            ("result", {"is_main_result": False, "png": PNG}),
            ("result", {"is_main_result": True, "text": "42", "extra": {"x/y": 1}}),
            ("stdout", {"text": "three\n"}),
            ("error", {"name": "ValueError", "value": "no", "traceback": "Traceback …"}),
            ("end", ENDED),
        )
    ]
    assert [type(each).__name__ for each in given if each is not None] == [
        "OutputMessage", "OutputMessage", "Result", "Result", "OutputMessage", "ExecutionError",
    ]  # fmt: skip
    execution = builder.execution()
    assert (execution.logs.stdout, execution.logs.stderr) == (["one\n", "three\n"], ["two\n"])
    assert (execution.text, execution.execution_count, execution.id) == ("42", 3, "cell_0123456789ab")
    assert (str(execution.error), execution.ok) == ("ValueError: no", False)
    again = Execution.of(json.loads(execution.to_json()))
    assert again == execution
    assert again["logs"]["stdout"][0] == "one\n"


def test_a_result_tells_its_formats_and_reads_like_a_dictionary() -> None:
    result = Result(text="<Figure>", png=PNG, extra={"text/x": "y"})
    assert result.formats() == ["text", "png", "text/x"]
    assert (result["png"], result["html"], "chart" in result) == (PNG, None, True)
    assert (str(result), repr(result)) == ("<Figure>", "<Result text, png, text/x>")
    assert result.is_picture
    assert Execution().text is None


def test_a_result_is_saved_in_the_format_of_the_suffix_or_as_the_picture_it_is(tmp_path: Path) -> None:
    result = Result(text="<Figure>", html="<b>ö</b>", png=PNG, json={"a": 1})
    assert result.save(tmp_path / "chart").name == "chart.png"
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")
    assert result.save(tmp_path / "page.html").read_text() == "<b>ö</b>"
    assert json.loads(result.save(tmp_path / "a.json").read_text()) == {"a": 1}
    assert Result(text="only a text").save(tmp_path / "value").read_text() == "only a text"
    with pytest.raises(InvalidRequest, match=r"no jpeg .it has: text, html, png, json"):
        result.save(tmp_path / "chart.jpg")
    with pytest.raises(InvalidRequest, match=r"take one of \.png"):
        result.save(tmp_path / "chart.exe")
    with pytest.raises(InvalidRequest, match="not base64"):
        Result(png="abcde").to_bytes("png")
    with pytest.raises(InvalidRequest):
        Result().save(tmp_path / "empty")


def test_a_notebook_displays_a_result_without_running_its_scripts() -> None:
    script = "<script>alert(1)</script>"
    shown = Result(html=script, png=PNG, javascript="alert(1)")
    assert shown._repr_png_() == PNG
    framed = shown._repr_html_() or ""
    assert framed.startswith('<iframe sandbox=""')
    assert script not in framed
    assert script not in (Result(svg=f"<svg>{script}</svg>")._repr_html_() or "")
    assert Result(text="a")._repr_html_() is None
    assert not hasattr(shown, "_repr_javascript_")


def test_a_piece_of_output_is_a_text_that_knows_its_stream() -> None:
    message = OutputMessage("a\n", error=True)
    assert (message, message.line, message.error) == ("a\n", "a\n", True)
    assert message.timestamp > 0


def test_a_context_has_what_the_server_says_of_it_and_leaves_out_what_it_does_not_know() -> None:
    context = CodeContext.of({"id": "ctx_r", "language": "r", "state": "lost", "lost_reason": "oom", "new": 1})
    assert (context.id, context.state, context.lost_reason, context.cwd) == ("ctx_r", "lost", "oom", "")
