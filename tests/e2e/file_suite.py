"""Files over HTTP: read, written, listed, moved, removed, watched; under any name."""

import asyncio
import io
import tarfile
from typing import Any

import pytest
from e2e.api_client import COMMENT, Event, SessionApi

NAMES: list[str | bytes] = [
    "plain",
    "two words",
    "line\nbreak",
    "žluťoučký 🐎",
    "-rf",
    "--help",
    "'quotes\" $HOME `id`",
    "back\\slash",
    "per%20cent&a=b#c?d+e",
    ".hidden",
    b"not-utf8-\xff\xfe",
]


async def listed(session: SessionApi, **params: Any) -> list[str]:
    return [one["path"] for one in (await session.get("/files", **params))["files"]]


@pytest.mark.anyio
class FileSuite:
    async def test_a_file_is_written_and_read(self, session: SessionApi) -> None:
        data = bytes(range(256)) * 1000
        info = await session.write("data.bin", data)
        assert (info["path"], info["name"], info["kind"]) == ("/workspace/data.bin", "data.bin", "file")
        assert (info["size"], info["mode"], info["target"]) == (256_000, "0644", None)
        assert await session.read("data.bin") == data
        assert await session.read("/workspace/data.bin") == data

    async def test_an_empty_file_and_a_new_content(self, session: SessionApi) -> None:
        await session.write("f", b"long content")
        assert (await session.write("f", b""))["size"] == 0
        assert await session.read("f") == b""

    @pytest.mark.parametrize("name", NAMES)
    async def test_a_name_may_be_anything(self, session: SessionApi, name: str | bytes) -> None:
        raw = name if isinstance(name, bytes) else name.encode()
        await session.write(name, b"content")
        assert await session.read(name) == b"content"
        assert (await session.get("/files/stat", path=name))["size"] == 7
        found = await session.get("/files")
        assert [one["name"].encode(errors="surrogateescape") for one in found["files"]] == [raw]
        await session.call("DELETE", "/files", path=name, status=204)
        assert await listed(session) == []

    async def test_directories_on_the_way_are_made(self, session: SessionApi) -> None:
        await session.write("a/b/c.txt", b"x")
        assert await listed(session, depth=3) == ["/workspace/a", "/workspace/a/b", "/workspace/a/b/c.txt"]

    async def test_a_mode_of_ones_own(self, session: SessionApi) -> None:
        assert (await session.write("run.sh", b"echo hi", mode="0755"))["mode"] == "0755"
        assert await session.output("./run.sh") == "hi\n"
        for mode in ("9", "rwx", "07777777"):
            await session.refused(
                "PUT", "/files/content", data=b"", path="f", mode=mode, status=422, code="invalid_request"
            )

    async def test_a_part_of_a_file_is_read(self, session: SessionApi) -> None:
        await session.write("f", b"0123456789")
        for wanted, status, content, shown in (
            ("bytes=3-", 206, b"3456789", "bytes 3-9/10"),
            ("bytes=3-5", 206, b"345", "bytes 3-5/10"),
            ("bytes=3-500", 206, b"3456789", "bytes 3-9/10"),
            ("bytes=0-0", 206, b"0", "bytes 0-0/10"),
            ("bytes=-3", 206, b"789", "bytes 7-9/10"),
            ("bytes=-10", 206, b"0123456789", "bytes 0-9/10"),
            ("bytes=-500", 206, b"0123456789", "bytes 0-9/10"),
        ):
            async with session.ask("GET", "/files/content", path="f", headers={"Range": wanted}) as answer:
                assert (answer.status, await answer.read()) == (status, content)
                assert answer.headers["Content-Range"] == shown
        for beyond in ("bytes=10-", "bytes=-0"):
            async with session.ask("GET", "/files/content", path="f", headers={"Range": beyond}) as answer:
                assert (answer.status, answer.headers["Content-Range"]) == (416, "bytes */10")
        for bad in ("bytes=5-3", "lines=1-2", "bytes=-"):
            await session.refused(
                "GET", "/files/content", path="f", headers={"Range": bad}, status=422, code="invalid_request"
            )

    async def test_a_part_of_what_a_link_leads_to_is_read(self, session: SessionApi) -> None:
        await session.write("deep/f", b"0123456789" * 10)
        await session.exec("ln -s f deep/near; ln -s deep/near far")
        async with session.ask("GET", "/files/content", path="far", headers={"Range": "bytes=50-"}) as answer:
            assert (answer.status, answer.headers["Content-Range"]) == (206, "bytes 50-99/100")
            assert answer.headers["X-File-Size"] == "100"
            assert await answer.read() == b"0123456789" * 5

    async def test_a_read_says_how_large_the_file_was(self, session: SessionApi) -> None:
        await session.write("f", b"0123456789")
        async with session.ask("GET", "/files/content", path="f") as answer:
            assert answer.headers["X-File-Size"] == "10"
            assert answer.headers["X-Content-Type-Options"] == "nosniff"

    async def test_a_directory_is_listed_as_deep_as_is_asked(self, session: SessionApi) -> None:
        await session.write("a/b/c", b"x")
        await session.write("z", b"xyz")
        assert sorted(await listed(session)) == ["/workspace/a", "/workspace/z"]
        assert len(await listed(session, depth=2)) == 3
        assert await listed(session, path="a/b") == ["/workspace/a/b/c"]
        found = {one["path"]: one for one in (await session.get("/files"))["files"]}
        assert (found["/workspace/a"]["kind"], found["/workspace/z"]["size"]) == ("directory", 3)
        assert found["/workspace/z"]["modified"].endswith("Z")

    async def test_a_link_is_shown_as_one_and_read_through(self, session: SessionApi) -> None:
        await session.write("f", b"there")
        await session.exec("ln -s f link")
        [link] = [one for one in (await session.get("/files"))["files"] if one["name"] == "link"]
        assert (link["kind"], link["target"]) == ("symlink", "f")
        assert await session.read("link") == b"there"

    async def test_directories_are_made_moved_and_removed(self, session: SessionApi) -> None:
        info = await session.post("/files/mkdir", {"path": "d/e"}, status=201)
        assert (info["path"], info["kind"], info["mode"]) == ("/workspace/d/e", "directory", "0755")
        await session.write("d/e/f", b"x")
        assert (await session.post("/files/move", {"source": "d/e", "target": "new"}))["kind"] == "directory"
        assert await session.read("new/f") == b"x"
        await session.call("DELETE", "/files", path="new/f", status=204)
        for name in ("d", "new"):
            await session.call("DELETE", "/files", path=name, recursive="true", status=204)
        assert await listed(session) == []

    @pytest.mark.parametrize(
        ("method", "place", "params", "status", "code"),
        [
            ("GET", "/files/content", {"path": "none"}, 404, "file_not_found"),
            ("GET", "/files/stat", {"path": "none"}, 404, "file_not_found"),
            ("GET", "/files", {"path": "none"}, 404, "file_not_found"),
            ("DELETE", "/files", {"path": "none"}, 404, "file_not_found"),
            ("GET", "/files/archive", {"path": "none"}, 404, "file_not_found"),
            ("GET", "/files/watch", {"path": "none"}, 404, "file_not_found"),
            ("GET", "/files/search", {"path": "none", "glob": "*"}, 404, "file_not_found"),
            ("GET", "/files/search", {}, 422, "invalid_request"),
            ("GET", "/files/search", {"pattern": "("}, 422, "invalid_request"),
            ("GET", "/files/search", {"pattern": "x", "max_matches": "0"}, 422, "invalid_request"),
            ("GET", "/files/content", {"path": "dir"}, 400, "is_directory"),
            ("PUT", "/files/content", {"path": "dir"}, 400, "is_directory"),
            ("DELETE", "/files", {"path": "dir"}, 400, "is_directory"),
            ("GET", "/files", {"path": "dir/file"}, 400, "not_a_directory"),
            ("GET", "/files/content", {"path": "dir/file/x"}, 400, "not_a_directory"),
            ("PUT", "/files/content", {"path": "/etc/passwd"}, 403, "permission_denied"),
            ("GET", "/files/content", {"path": ""}, 422, "invalid_path"),
            ("GET", "/files/content", {"path": "a\0b"}, 422, "invalid_path"),
            ("GET", "/files/content", {"path": "x" * 5000}, 422, "invalid_path"),
            ("GET", "/files/content", {}, 422, "invalid_request"),
            ("GET", "/files", {"depth": 0}, 422, "invalid_request"),
            ("GET", "/files", {"user": "nobody-knows"}, 422, "unknown_user"),
        ],
    )
    async def test_what_cannot_be_done_is_told(
        self, session: SessionApi, method: str, place: str, params: dict[str, Any], status: int, code: str
    ) -> None:
        await session.write("dir/file", b"x")
        await session.refused(method, place, status=status, code=code, **params)
        assert await session.read("dir/file") == b"x"

    async def test_moving_what_is_not_there_is_told(self, session: SessionApi) -> None:
        body = {"source": "none", "target": "x"}
        await session.refused("POST", "/files/move", body, status=404, code="file_not_found")

    async def test_a_tree_goes_in_and_out_as_a_tar(self, session: SessionApi) -> None:
        await session.call(
            "PUT", "/files/archive", data=tar({"a/one": b"1", "two words": b"22"}), path="in", status=201
        )
        assert await session.read("in/a/one") == b"1"
        assert (await session.call("PUT", "/files/archive", data=tar({"x": b""}), status=201))["members"] == 1
        async with session.ask("GET", "/files/archive", path="in") as answer:
            assert answer.content_type == "application/x-tar"
            packed = await answer.read()
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            found = {name.removeprefix("./"): archive.extractfile(name) for name in archive.getnames()}
            contents = {name: file.read() for name, file in found.items() if file is not None}
        assert contents == {"a/one": b"1", "two words": b"22"}

    async def test_a_tar_that_leads_out_or_is_none_is_refused(self, session: SessionApi) -> None:
        for data in (tar({"../out": b"x"}), b"this is no tar " * 100):
            async with session.ask("PUT", "/files/archive", data=data, path="in") as answer:
                assert answer.status in (400, 422), await answer.read()
                assert answer.content_type == "application/problem+json"
        assert (await session.exec("cat /workspace/out"))["exit_code"] != 0

    async def test_files_are_found_by_name_and_by_content(self, session: SessionApi) -> None:
        await session.write("src/one.py", b"import os\nprint('two')\n")
        await session.write("src/two.txt", b"two\n")
        found = await session.get("/files/search", pattern="t[w]o", glob="*.py")
        assert found["matches"] == [
            {
                "path": "/workspace/src/one.py",
                "kind": "file",
                "line": 2,
                "column": 8,
                "text": "print('two')",
                "text_truncated": False,
            }
        ]
        assert (found["summary"]["matches"], found["summary"]["truncated_by"]) == (1, None)
        names = await session.get("/files/search", glob="src/*")
        assert [one["path"] for one in names["matches"]] == ["/workspace/src/one.py", "/workspace/src/two.txt"]

    async def test_a_search_is_streamed_and_says_what_ended_it(self, session: SessionApi) -> None:
        await session.write("many", b"line\n" * 100)
        async with session.events("GET", "/files/search", pattern="line", max_matches=3) as events:
            seen = [event async for event in events if event is not COMMENT]
        assert [event.kind for event in seen] == ["match", "match", "match", "summary"]
        assert [event.data["line"] for event in seen[:3]] == [1, 2, 3]
        assert seen[3].data["truncated_by"] == "max_matches"

    async def test_an_answer_that_is_no_stream_has_a_bound(self, session: SessionApi) -> None:
        await session.write("long", (b"x" * 100 + b"\n") * 30_000)
        found = await session.get("/files/search", pattern="x", max_matches=100_000)
        assert 1000 < len(found["matches"]) < 30_000
        assert found["summary"]["truncated_by"] == "answer_bytes"

    async def test_a_change_after_watching_began_is_never_missed(self, session: SessionApi) -> None:
        async with session.events("GET", "/files/watch") as events:
            first = await anext(events)
            assert (first.kind, first.data) == ("watching", {"path": "/workspace"})
            await session.write("f", b"x")
            seen = await changes(events, "/workspace/f")
            assert {event.data["change"] for event in seen} & {"created", "moved_to"}
            await session.call("DELETE", "/files", path="f", status=204)
            seen = await changes(events, "/workspace/f", "removed")
            assert seen[-1].data["directory"] is False

    async def test_every_one_of_many_changes_comes(self, session: SessionApi) -> None:
        async with session.events("GET", "/files/watch", recursive="true") as events:
            assert (await anext(events)).kind == "watching"
            await asyncio.gather(*(session.write(f"n{number}", b"x") for number in range(30)))
            wanted = {f"/workspace/n{number}" for number in range(30)}
            while wanted:
                wanted -= {(await anext(events)).data.get("path")}


async def changes(events: Any, path: str, change: str = "") -> list[Event]:
    """Events until one is about this path (and is this change)."""
    seen: list[Event] = []
    while not seen or seen[-1].data["path"] != path or change not in ("", seen[-1].data["change"]):
        event = await anext(events)
        if event.kind != COMMENT:
            assert event.kind == "change", event
            seen.append(event)
    return seen


def tar(files: dict[str, bytes]) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return made.getvalue()
