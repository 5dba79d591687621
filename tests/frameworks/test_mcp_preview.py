"""What of a file or an output a model gets to see: windows of lines, kinds of files, shortened texts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warren.integrations.file_preview import Window, image_type, is_text
from warren.integrations.mcp.calls import MAX_CHARACTERS, error_result, shorten
from warren.integrations.mcp.file_tools import replace_text
from warren.integrations.mcp.sdk_adapter import transport_security
from warren.model.errors import InvalidRequest, NoCapacity


@given(
    text=st.text(alphabet="aé\n\r\u2028", max_size=60),
    start=st.integers(1, 8),
    lines=st.integers(1, 8),
    piece=st.integers(1, 7),
)
def test_a_window_is_the_same_however_the_file_comes_in(text: str, start: int, lines: int, piece: int) -> None:
    data = text.encode()
    window = Window(start, lines, 1000)
    pieces = [data[at : at + piece] for at in range(0, len(data), piece)]
    wanted = all(window.feed(each) for each in pieces)
    expected = [line + "\n" for line in text.split("\n")[:-1]] + [text.split("\n")[-1]]
    assert window.text == "".join(expected[start - 1 : start - 1 + lines])
    assert window.more == (not wanted) == any(expected[start - 1 + lines :])


def test_a_window_stops_at_its_characters_and_says_that_the_line_is_cut() -> None:
    window = Window(1, 10, 5)
    assert not window.feed(b"123\n567\n")
    assert (window.text, window.last, window.cut) == ("123\n5", 2, True)
    assert "line 2 is not whole" in window.summary()


def test_a_window_that_is_just_full_is_not_cut() -> None:
    window = Window(1, 10, 4)
    assert not window.feed(b"123\n567\n")
    assert (window.text, window.cut) == ("123\n", False)
    assert "start_line=2" in window.summary()


@pytest.mark.parametrize(
    ("head", "mime"),
    [
        (b"\x89PNG\r\n\x1a\n...", "image/png"),
        (b"\xff\xd8\xff\xe0", "image/jpeg"),
        (b"GIF89a", "image/gif"),
        (b"RIFF\0\0\0\0WEBPVP8 ", "image/webp"),
        (b"RIFF\0\0\0\0WAVE", ""),
        (b"<svg/>", ""),
        (b"", ""),
    ],
)
def test_images_are_known_by_what_is_in_them(head: bytes, mime: str) -> None:
    assert image_type(head) == mime


@pytest.mark.parametrize(
    ("head", "text"),
    [(b"", True), (b"plain", True), ("é".encode()[:1], True), (b"\xff\xfe", False), (b"a\0b", False)],
)
def test_texts_are_told_from_binary_files(head: bytes, text: bool) -> None:
    assert is_text(head) is text


def test_a_long_text_keeps_its_beginning_and_end() -> None:
    text = "a" * 100_000 + "z"
    short = shorten(text, "see the file")
    assert len(short) < MAX_CHARACTERS + 100
    assert short.startswith("aaa")
    assert short.endswith("az")
    assert "70001 characters left out here; see the file" in short
    assert shorten("x" * MAX_CHARACTERS, "") == "x" * MAX_CHARACTERS


def test_a_replacement_must_be_unambiguous() -> None:
    assert replace_text("a b c", "b", "x", False) == ("a x c", 1)
    assert replace_text("a a", "a", "", True) == (" ", 2)
    for old, new in (("", "x"), ("a", "a"), ("z", "x"), ("a", "x")):
        with pytest.raises(InvalidRequest):
            replace_text("a a", old, new, False)


def test_an_error_is_sentences() -> None:
    found = error_result(NoCapacity("nothing became free", remedy="delete a session"))
    assert found.failed
    [block] = found.content
    assert block["text"].startswith("Nothing became free. Delete a session. All sandboxes are taken")


def test_a_server_goes_by_the_names_it_was_given() -> None:
    settings = transport_security("192.0.2.7", ["mcp.example.org"])
    assert settings.enable_dns_rebinding_protection
    assert {"localhost", "127.0.0.1:*", "192.0.2.7:*", "mcp.example.org"} <= set(settings.allowed_hosts)
    assert "https://mcp.example.org" in settings.allowed_origins
    assert "[2001:db8::1]:*" in transport_security("2001:db8::1").allowed_hosts
