"""What a model reads of code that ran, and the pictures it gets."""

import base64

from warren.integrations.reports import CodeReport, describe_code
from warren.sdk.code_results import Execution, ExecutionError, OutputMessage, Result

PNG = b"\x89PNG\r\n\x1a\n"


def picture(size: int = 100) -> Result:
    return Result(text="<Figure>", png=base64.b64encode(PNG.ljust(size, b"\0")).decode())


def report(*shown: OutputMessage | Result, **ended: object) -> CodeReport:
    return describe_code(Execution.of(ended), shown, 120.0, 1000)


def test_all_that_was_shown_is_told_in_order_and_ends_with_the_error() -> None:
    error = ExecutionError("ValueError", "no", "Traceback:\n  …\nValueError: no\n")
    told = report(
        OutputMessage("out"),
        Result(text="a value"),
        OutputMessage("err\n", error=True),
        picture(),
        Result(markdown="# only *this*"),
        Result(data={"a": [1]}),
        OutputMessage("more\n"),
        error=dict(error),
    )
    assert told.text == (
        "out\na value\nerr\n[picture 1]\n# only *this*\n[a value as data]\nmore\nTraceback:\n  …\nValueError: no"
    )
    assert [(each.mime_type, each.data[:8]) for each in told.pictures] == [("image/png", PNG)]


def test_pictures_are_bounded_in_number_and_size_and_must_be_what_they_say() -> None:
    shown = [picture(4_000_000), picture(3_000_000), picture(3_000_000), picture(3_000_000), *[picture()] * 9]
    told = report(*shown, Result(png=base64.b64encode(b"<html>").decode()), Result(png="abcde"), Result(svg="<svg/>"))
    assert [len(each.data) for each in told.pictures] == [3_000_000, 3_000_000] + [100] * 6
    assert told.text.count("[a picture that is too large to be shown, or of a kind that is not]") == 8


def test_how_it_ended_is_told() -> None:
    assert report().text == ""
    late = {"name": "TimeoutError", "value": "", "traceback": ""}
    assert "interrupted after 120 seconds" in report(reason="timeout", error=late).text
    lost = report(reason="context_lost", context_lost="oom", error={**late, "name": "ContextLost"})
    assert lost.text.startswith("ContextLost\n[The interpreter is gone: it ran out of memory.")
    assert "is missing" in report(truncated=True).text
    assert "characters left out" in report(OutputMessage("x" * 5000)).text
