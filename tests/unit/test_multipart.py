"""Forms with files: what is read, and that nothing broken looks complete."""

import random
from collections.abc import AsyncIterator

import pytest
from busiest_turn import MAX_S, busiest_turn

from warren.http.multipart import MAX_FIELD, MAX_PARTS, FormPart, read_parts
from warren.model.errors import InvalidRequest, TooLarge

pytestmark = pytest.mark.anyio
TYPE = "multipart/form-data; boundary=XyZ"


def part(disposition: str, body: bytes = b"data", *headers: str) -> bytes:
    lines = [f"Content-Disposition: {disposition}", *headers]
    return b"--XyZ\r\n" + "\r\n".join(lines).encode() + b"\r\n\r\n" + body + b"\r\n"


END = b"--XyZ--\r\n"


async def pieces(data: bytes, size: int = 1 << 20) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


async def read_all(data: bytes, size: int = 1 << 20, content_type: str = TYPE) -> list[tuple[str, str | None, bytes]]:
    return [
        (part.name, part.filename, b"".join([chunk async for chunk in part.chunks()]))
        async for part in read_parts(pieces(data, size), content_type)
    ]


async def one(data: bytes) -> FormPart:
    return await anext(aiter(read_parts(pieces(data), TYPE)))


async def test_fields_and_files_come_in_their_order_however_the_body_is_cut() -> None:
    # A boundary with spaces behind it is one too, by RFC 2046: no part may have a line that begins with both.
    tricky = b"\r\n--XyQ\r\n--XyZ_is not at a line's end\r\n-" + bytes(range(256)) * 20
    body = part('form-data; name="a"', b"") + part('form-data; name="f"; filename="x y.bin"', tricky) + END
    expected = [("a", None, b""), ("f", "x y.bin", tricky)]
    for size in (1, 2, 3, 7, 64, 1000, 1 << 20):
        assert await read_all(body, size) == expected


async def test_random_bodies_survive_random_cuts() -> None:
    chance = random.Random(7)
    for _ in range(100):
        bodies = [bytes(chance.choices(b"\r\n-XyZab", k=chance.randrange(200))) for _ in range(3)]
        if any(b"\r\n--XyZ" in b"\r\n" + body for body in bodies):
            continue
        data = b"".join(part(f'form-data; name="{index}"', body) for index, body in enumerate(bodies)) + END
        assert [body for _, _, body in await read_all(data, chance.randrange(1, 50))] == bodies


@pytest.mark.parametrize(
    ("parameters", "filename"),
    [
        ('filename="naïve 😀.txt"', "naïve 😀.txt"),
        ("filename*=UTF-8''na%C3%AFve%20%F0%9F%98%80.txt", "naïve 😀.txt"),
        ("filename=\"plain.txt\"; filename*=utf-8'en'%e2%82%ac.txt", "€.txt"),
        ("filename*=iso-8859-1''%A3.txt", "£.txt"),
        ('filename="a\\"b\\\\c.txt"', 'a"b\\c.txt'),
        ('filename="a; name=evil.txt"', "a; name=evil.txt"),
        ("filename=bare.txt", "bare.txt"),
        ('filename="../../etc/passwd"', "../../etc/passwd"),
        ('filename="C:\\dir\\f.txt"', "C:\\dir\\f.txt"),
        ('filename=""', ""),
    ],
)
async def test_file_names_are_given_as_they_were_sent(parameters: str, filename: str) -> None:
    assert (await one(part(f'form-data; name="f"; {parameters}') + END)).filename == filename


async def test_headers_are_kept_and_text_is_read() -> None:
    found = await one(part('form-data; name="t"', "grüße".encode(), "Content-Type: text/plain", "X-A:  b ") + END)
    assert found.headers["content-type"] == "text/plain"
    assert found.headers["x-a"] == "b"
    assert await found.text() == "grüße"
    assert repr(found) == "<Part 't', file name None>"


async def test_parts_that_are_not_read_are_skipped() -> None:
    body = part('form-data; name="a"', b"x" * 100_000) + part('form-data; name="b"', b"y") + END
    assert [found.name async for found in read_parts(pieces(body, 1000), TYPE)] == ["a", "b"]


async def test_the_body_is_pulled_only_as_it_is_read() -> None:
    pulled = 0

    async def stream() -> AsyncIterator[bytes]:
        nonlocal pulled
        yield part('form-data; name="f"', b"")[:-2]
        while True:
            pulled += 1
            yield b"x" * 1000

    found = await anext(aiter(read_parts(stream(), TYPE)))
    assert pulled == 0
    chunks = found.chunks()
    await anext(chunks)
    assert pulled == 1


@pytest.mark.parametrize("cut", [1, 2, 3, 5, 9, 10, 11, 12, 50])
async def test_an_upload_that_is_cut_off_never_looks_complete(cut: int) -> None:
    body = part('form-data; name="f"; filename="f"', b"0123456789") + b"--XyZ--"
    with pytest.raises(InvalidRequest, match="ended too early"):
        await read_all(body[:-cut])


@pytest.mark.parametrize(
    ("content_type", "said"),
    [
        ("application/json", "a form with files was expected"),
        ("", "a form with files was expected"),
        ("multipart/form-data", "names no boundary"),
        ('multipart/form-data; boundary=""', "names no boundary"),
        ("multipart/form-data; boundary=ä", "names no boundary"),
        ("multipart/form-data; boundary=" + "x" * 300, "cannot be used"),
    ],
)
async def test_a_wrong_content_type_is_explained(content_type: str, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        await read_all(b"", content_type=content_type)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"nonsense", "broken"),
        (b"--XyZ\rX", "broken"),
        (b"--XyZ\r\nno colon\r\n\r\n", "broken"),
        (b"", "ended too early"),
        (part('attachment; name="f"') + END, "Content-Disposition"),
        (part("form-data") + END, "Content-Disposition"),
        (b"--XyZ\r\n\r\nx\r\n" + END, "Content-Disposition"),
        (b'--XyZ\r\nContent-Disposition: form-data; name="\xff"\r\n\r\nx\r\n' + END, "UTF-8"),
        (part("form-data; name=f; filename*=UTF-8''%ff") + END, "UTF-8"),
        (part("form-data; name=f; filename*=klingon''x") + END, "unknown notation"),
        (part('form-data; name="f"', b"x", 'Content-Disposition: form-data; name="g"') + END, "two"),
    ],
)
async def test_a_broken_form_is_refused(body: bytes, said: str) -> None:
    for size in (1, 1 << 20):
        with pytest.raises(InvalidRequest, match=said):
            await read_all(body, size)


async def test_there_are_limits() -> None:
    with pytest.raises(TooLarge, match="parts"):
        await read_all(part('form-data; name="f"') * (MAX_PARTS + 1) + END)
    with pytest.raises((TooLarge, InvalidRequest), match="header"):
        await read_all(part('form-data; name="f"', b"", "X-Long: " + "x" * 17_000) + END)
    with pytest.raises(TooLarge, match="headers"):
        await read_all(part('form-data; name="f"', b"", *(f"X-{n}: " + "x" * 900 for n in range(20))) + END)
    with pytest.raises(TooLarge, match="'f' is larger"):
        await (await one(part('form-data; name="f"', b"x" * (MAX_FIELD + 1)) + END)).text()
    with pytest.raises(InvalidRequest, match="UTF-8"):
        await (await one(part('form-data; name="f"', b"\xff") + END)).text()


async def test_what_looks_like_a_boundary_again_and_again_holds_up_nobody() -> None:
    almost = b"\r\n--bx" * 50_000
    body = b'--b\r\nContent-Disposition: form-data; name="f"; filename="f"\r\n\r\n' + almost + b"\r\n--b--\r\n"
    async with busiest_turn() as busiest:
        assert await read_all(body, content_type="multipart/form-data; boundary=b") == [("f", "f", almost)]
    assert busiest.seconds < MAX_S
