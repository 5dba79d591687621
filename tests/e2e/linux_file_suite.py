"""Files over HTTP, where a real sandbox is needed: large ones, broken uploads, a disk that is full."""

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator

import pytest
from e2e.api_client import Api, SessionApi, until

LARGE = 50 * 1024 * 1024
_PIECE = os.urandom(1024 * 1024)


def piece(number: int) -> bytes:
    return number.to_bytes(8, "big") + _PIECE[8:]


@pytest.mark.anyio
class LinuxFileSuite:
    async def test_a_large_file_goes_in_and_out_unchanged(self, session: SessionApi) -> None:
        async def pieces() -> AsyncIterator[bytes]:
            for number in range(LARGE // len(_PIECE)):
                yield piece(number)

        sent = hashlib.sha256(b"".join(piece(number) for number in range(LARGE // len(_PIECE)))).hexdigest()
        assert (await session.write("large", pieces()))["size"] == LARGE
        assert (await session.output("sha256sum large")).split()[0] == sent
        got = hashlib.sha256()
        async with session.ask("GET", "/files/content", path="large") as answer:
            async for part in answer.content.iter_chunked(1 << 20):
                got.update(part)
        assert got.hexdigest() == sent

    async def test_a_download_that_is_given_up_harms_nobody(self, session: SessionApi) -> None:
        await session.exec("head -c 30000000 /dev/zero > large")
        async with session.ask("GET", "/files/content", path="large") as answer:
            await answer.content.read(1000)
        assert await session.output("echo fine") == "fine\n"

    async def test_an_upload_that_breaks_off_leaves_the_old_file(self, session: SessionApi) -> None:
        await session.write("f", b"old")
        for length in (None, str(10 * len(_PIECE))):
            await broken_upload(session, length)
            await asyncio.sleep(0.3)
            assert await session.read("f") == b"old"
        assert [one["name"] for one in (await session.get("/files"))["files"]] == ["f"]

    async def test_a_full_disk_is_told_and_the_old_file_stays(self, api: Api) -> None:
        async with api.session(limits={"disk_mb": 16}) as session:
            await session.write("f", b"old")
            await session.refused(
                "PUT", "/files/content", data=b"x" * (30 << 20), path="f", status=507, code="no_space"
            )
            assert await session.read("f") == b"old"
            await session.write("g", b"there is room for this")

    async def test_uploads_belong_to_the_sandboxs_user(self, session: SessionApi) -> None:
        await session.write("a/b", b"x")
        assert await session.output("stat -c %U a a/b") == "sandboxuser\nsandboxuser\n"
        assert await session.output("echo more >> a/b; touch a/c; cat a/b") == "xmore\n"

    async def test_what_commands_do_is_seen_by_a_watcher(self, session: SessionApi) -> None:
        async with session.events("GET", "/files/watch", recursive="true") as events:
            assert (await anext(events)).kind == "watching"
            await session.exec("mkdir -p d; sleep 0.2; echo x > 'd/a b'; mv 'd/a b' d/c; rm -r d")
            seen: set[tuple[str, str]] = set()

            async def take() -> None:
                while ("removed", "/workspace/d") not in seen:
                    event = await anext(events)
                    if event.kind == "change":
                        seen.add((event.data["change"], event.data["path"]))

            await asyncio.wait_for(take(), 60)
            assert ("created", "/workspace/d/a b") in seen
            assert ("moved_to", "/workspace/d/c") in seen

    async def test_a_thing_that_is_no_file_cannot_be_read(self, session: SessionApi) -> None:
        await session.exec("mkfifo pipe")
        async with session.ask("GET", "/files/content", path="pipe") as answer:
            assert 400 <= answer.status < 500
            assert answer.content_type == "application/problem+json"
        assert (await session.get("/files/stat", path="pipe"))["kind"] == "other"

    async def test_a_tree_with_odd_names_goes_out_as_a_tar(self, session: SessionApi) -> None:
        await session.write("t/-a b\n", b"1")
        await session.write(b"t/\xff", b"2")
        packed = await session.get("/files/archive", path="t")
        await session.call("PUT", "/files/archive", data=packed, path="copy", status=201)
        assert await session.read("copy/-a b\n") == b"1"
        assert await session.read(b"copy/\xff") == b"2"

    async def test_a_slow_upload_does_not_hold_up_others(self, session: SessionApi) -> None:
        go = asyncio.Event()

        async def slow() -> AsyncIterator[bytes]:
            yield b"first"
            await go.wait()
            yield b"last"

        writing = asyncio.ensure_future(session.write("slow", slow()))
        for number in range(10):
            await session.write(f"n{number}", b"x")
        assert not writing.done()
        go.set()
        assert (await writing)["size"] == 9

    async def test_nothing_of_a_broken_upload_stays_on_the_disk(self, session: SessionApi) -> None:
        await broken_upload(session, None)

        async def clean() -> bool:
            return await session.output("find / -xdev -size +1000k -user sandboxuser 2>/dev/null; true") == ""

        await until(clean, 20)


async def broken_upload(session: SessionApi, length: str | None) -> None:
    """An upload whose client goes away in the middle."""
    begun = asyncio.Event()

    async def pieces() -> AsyncIterator[bytes]:
        for number in range(3):
            yield piece(number)
        begun.set()
        await asyncio.sleep(3600)

    headers = {"Content-Length": length} if length else {}
    writing = asyncio.ensure_future(
        session.call("PUT", "/files/content", data=pieces(), path="f", status=201, headers=headers)
    )
    await asyncio.wait_for(begun.wait(), 30)
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)
