"""What every sandbox promises of its files (interfaces/sandbox.py)."""

import asyncio
import hashlib
import io
import tarfile
from collections.abc import AsyncIterator

import anyio
import pytest
from contract.provider_contract import ProviderHooks

from warren.interfaces.provider import Provider
from warren.interfaces.sandbox import Sandbox
from warren.model.errors import (
    Conflict,
    FileExists,
    FileNotFound,
    InvalidPath,
    InvalidRequest,
    IsDirectory,
    NotADirectory,
    PermissionDenied,
    SandboxLost,
    UnknownUser,
)
from warren.model.operations import (
    Change,
    Command,
    FileEvent,
    FileKind,
    Search,
    SearchLimit,
    SearchMatch,
    SearchTotals,
)

STRANGE_NAMES = [
    "with space", "new\nline", "ünïcödé ☃", "-dash", "--", "quote'\"", "$HOME", "*", "back\\slash", "tab\t", "a" * 255,
    "bad\udcff\udcfe bytes", " ", "...", "~",
]  # fmt: skip
MIB = 1024 * 1024


async def content(sandbox: Sandbox, path: str, offset: int = 0, length: int | None = None) -> bytes:
    return b"".join([part async for part in sandbox.read(path, offset=offset, length=length)])


async def packed(sandbox: Sandbox, path: str) -> tarfile.TarFile:
    return tarfile.open(fileobj=io.BytesIO(b"".join([part async for part in sandbox.pack(path)])))


async def found(sandbox: Sandbox, query: Search) -> tuple[list[SearchMatch], SearchTotals]:
    """The matches of a search, and its summary, which must be the last item and the only one of its kind."""
    items = [item async for item in sandbox.search(query)]
    summary = items.pop()
    assert isinstance(summary, SearchTotals)
    matches = [item for item in items if isinstance(item, SearchMatch)]
    assert len(matches) == len(items) == summary.matches
    return matches, summary


def tar_of(*members: tuple[str, bytes | None, dict[str, object]]) -> bytes:
    """A tar of (name, content or None, attributes of TarInfo)."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, data, attributes in members:
            info = tarfile.TarInfo(name)
            info.size = len(data or b"")
            for key, value in attributes.items():
                setattr(info, key, value)
            tar.addfile(info, io.BytesIO(data or b""))
    return out.getvalue()


@pytest.mark.anyio
class FilesContract(ProviderHooks):
    @pytest.fixture
    async def provider(self) -> AsyncIterator[Provider]:
        raise NotImplementedError
        yield

    @pytest.fixture
    async def sandbox(self, provider: Provider) -> AsyncIterator[Sandbox]:
        box = await provider.create(self.spec())
        try:
            with anyio.fail_after(60):
                yield box
        finally:
            await provider.destroy(box.id)

    # Reading and writing.

    async def test_what_is_written_is_read(self, sandbox: Sandbox) -> None:
        info = await sandbox.write("hello.txt", b"hello\0\xff")
        assert (info.path, info.kind, info.size) == ("/workspace/hello.txt", FileKind.FILE, 7)
        assert info.uid == await self.user_uid(sandbox)
        assert await content(sandbox, "hello.txt") == b"hello\0\xff"
        assert await content(sandbox, "/workspace/hello.txt") == b"hello\0\xff"
        assert (await sandbox.exec(Command(argv=("cat", "hello.txt")))).bytes_total == 7

    async def test_an_empty_file_is_a_file(self, sandbox: Sandbox) -> None:
        await sandbox.write("empty", b"")
        assert await content(sandbox, "empty") == b""
        assert (await sandbox.stat("empty")).size == 0

    async def test_parents_are_made_and_belong_to_the_user(self, sandbox: Sandbox) -> None:
        await sandbox.write("a/b/c/file", b"x")
        for path in ("a", "a/b", "a/b/c", "a/b/c/file"):
            assert (await sandbox.stat(path)).uid == await self.user_uid(sandbox)
        assert (await sandbox.exec(Command(shell="echo more > a/b/c/second"))).exit_code == 0

    async def test_a_new_file_has_an_ordinary_mode_and_a_given_one_is_set(self, sandbox: Sandbox) -> None:
        assert (await sandbox.write("plain", b"")).mode == 0o644
        assert (await sandbox.write("script", b"exit 5", mode=0o755)).mode == 0o755
        assert (await sandbox.stat("script")).mode == 0o755
        assert (await sandbox.exec(Command(shell="/workspace/script"))).exit_code == 5

    async def test_writing_again_keeps_the_mode(self, sandbox: Sandbox) -> None:
        await sandbox.write("script", b"exit 5", mode=0o750)
        assert (await sandbox.write("script", b"exit 6")).mode == 0o750
        assert (await sandbox.write("script", b"exit 7", mode=0o700)).mode == 0o700

    async def test_a_mode_that_cannot_be_is_refused(self, sandbox: Sandbox) -> None:
        with pytest.raises(InvalidRequest):
            await sandbox.write("x", b"", mode=0o1000000)

    async def test_big_files_go_in_and_out_in_parts(self, sandbox: Sandbox) -> None:
        block = bytes(range(256)) * 4096

        async def source() -> AsyncIterator[bytes]:
            for _ in range(24):
                yield block

        assert (await sandbox.write("big", source())).size == 24 * MIB
        digest, largest = hashlib.sha256(), 0
        async for part in sandbox.read("big"):
            digest.update(part)
            largest = max(largest, len(part))
        assert digest.digest() == hashlib.sha256(block * 24).digest()
        assert largest <= MIB

    async def test_ten_megabytes_at_once(self, sandbox: Sandbox) -> None:
        data = b"0123456789" * MIB
        await sandbox.write("ten", data)
        assert await content(sandbox, "ten") == data

    async def test_chunks_of_any_size_make_one_file(self, sandbox: Sandbox) -> None:
        async def source() -> AsyncIterator[bytes]:
            for size in (0, 1, 2, 70_000, 0, 3, 262_144, 262_145):
                yield b"x" * size

        assert (await sandbox.write("pieces", source())).size == 594_295

    @pytest.mark.parametrize(
        ("offset", "length", "expected"),
        [
            (0, None, b"0123456789"), (3, None, b"3456789"), (3, 4, b"3456"), (8, 10, b"89"),
            (10, 5, b""), (99, None, b""), (0, 0, b""),
        ],
    )  # fmt: skip
    async def test_ranges(self, sandbox: Sandbox, offset: int, length: int | None, expected: bytes) -> None:
        await sandbox.write("digits", b"0123456789")
        assert await content(sandbox, "digits", offset, length) == expected

    async def test_ranges_that_cannot_be_are_refused(self, sandbox: Sandbox) -> None:
        await sandbox.write("digits", b"0123456789")
        for offset, length in ((-1, None), (0, -1)):
            with pytest.raises(InvalidRequest):
                await content(sandbox, "digits", offset, length)

    async def test_a_reader_may_leave_early(self, sandbox: Sandbox) -> None:
        await sandbox.write("big", bytes(8 * MIB))
        reading = sandbox.read("big")
        assert await anext(reading)
        await reading.aclose()  # type: ignore[attr-defined]
        await sandbox.ping()

    async def test_a_write_whose_source_raises_keeps_the_old_file(self, sandbox: Sandbox) -> None:
        await sandbox.write("kept", b"old")

        async def broken() -> AsyncIterator[bytes]:
            yield b"new" * 1000
            raise ValueError("the source broke")

        with pytest.raises(ValueError, match="the source broke"):
            await sandbox.write("kept", broken())
        with pytest.raises(ValueError, match="the source broke"):
            await sandbox.write("never", broken())
        assert await content(sandbox, "kept") == b"old"
        await self.only_these_are_left(sandbox, ["kept"])

    async def test_a_cancelled_write_keeps_the_old_file(self, sandbox: Sandbox) -> None:
        await sandbox.write("kept", b"old")
        begun = asyncio.Event()

        async def endless() -> AsyncIterator[bytes]:
            yield b"new"
            begun.set()
            await asyncio.Event().wait()

        task = asyncio.ensure_future(sandbox.write("kept", endless()))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await content(sandbox, "kept") == b"old"
        await self.only_these_are_left(sandbox, ["kept"])

    async def only_these_are_left(self, sandbox: Sandbox, names: list[str]) -> None:
        with anyio.fail_after(5):
            while [info.name for info in await sandbox.list("/workspace")] != names:
                await asyncio.sleep(0.01)

    async def test_a_reader_sees_the_old_file_until_the_new_one_is_whole(self, sandbox: Sandbox) -> None:
        await sandbox.write("file", b"old")

        async def source() -> AsyncIterator[bytes]:
            yield b"ne"
            assert await content(sandbox, "file") == b"old"
            yield b"w"

        await sandbox.write("file", source())
        assert await content(sandbox, "file") == b"new"

    @pytest.mark.parametrize("name", STRANGE_NAMES)
    async def test_strange_names(self, sandbox: Sandbox, name: str) -> None:
        await sandbox.write(f"/workspace/{name}", b"content")
        assert await content(sandbox, f"/workspace/{name}") == b"content"
        assert [info.path for info in await sandbox.list("/workspace")] == [f"/workspace/{name}"]
        await sandbox.rename(f"/workspace/{name}", "/workspace/plain")
        await sandbox.rename("/workspace/plain", f"/workspace/{name}")
        await sandbox.remove(f"/workspace/{name}")
        assert await sandbox.list("/workspace") == []

    # Looking.

    async def test_stat_tells_the_kinds_apart(self, sandbox: Sandbox) -> None:
        await sandbox.write("file", b"12345")
        await sandbox.mkdir("folder")
        await sandbox.exec(Command(shell="ln -s file link; ln -s nowhere broken"))
        assert (await sandbox.stat("file")).kind is FileKind.FILE
        assert (await sandbox.stat("folder")).kind is FileKind.DIRECTORY
        link = await sandbox.stat("link")
        assert (link.kind, link.target) == (FileKind.SYMLINK, "file")
        assert (await sandbox.stat("broken")).target == "nowhere"
        assert await content(sandbox, "link") == b"12345"

    async def test_a_file_is_as_old_as_its_last_write(self, sandbox: Sandbox) -> None:
        first = (await sandbox.write("file", b"1")).modified
        assert first > 1_600_000_000
        assert (await sandbox.write("file", b"2")).modified >= first

    async def test_a_list_is_as_deep_as_asked(self, sandbox: Sandbox) -> None:
        await sandbox.write("a/b/c", b"")
        await sandbox.write("d", b"")
        for depth, expected in (
            (1, {"/workspace/a", "/workspace/d"}),
            (2, {"/workspace/a", "/workspace/a/b", "/workspace/d"}),
            (9, {"/workspace/a", "/workspace/a/b", "/workspace/a/b/c", "/workspace/d"}),
        ):
            assert {info.path for info in await sandbox.list("/workspace", depth=depth)} == expected
        assert {info.path for info in await sandbox.list("a")} == {"/workspace/a/b"}

    async def test_a_list_does_not_follow_links(self, sandbox: Sandbox) -> None:
        await sandbox.exec(Command(shell="ln -s / all; ln -s . self"))
        assert {info.path for info in await sandbox.list("/workspace", depth=5)} == {
            "/workspace/all",
            "/workspace/self",
        }

    async def test_a_thousand_files_are_listed(self, sandbox: Sandbox) -> None:
        names = [f"file-{number:04}" for number in range(1000)]
        assert await sandbox.unpack("many", tar_of(*((name, b"x", {}) for name in names))) == 1000
        assert sorted(info.name for info in await sandbox.list("many")) == names

    # Changing.

    async def test_mkdir_makes_parents_and_sets_the_mode(self, sandbox: Sandbox) -> None:
        await sandbox.mkdir("x/y/z", mode=0o700)
        info = await sandbox.stat("x/y/z")
        assert (info.kind, info.mode, info.uid) == (FileKind.DIRECTORY, 0o700, await self.user_uid(sandbox))

    async def test_mkdir_of_what_exists_is_refused(self, sandbox: Sandbox) -> None:
        await sandbox.mkdir("x")
        with pytest.raises(FileExists):
            await sandbox.mkdir("x")

    async def test_a_directory_is_removed_only_recursively(self, sandbox: Sandbox) -> None:
        await sandbox.write("folder/deep/file", b"")
        with pytest.raises(IsDirectory):
            await sandbox.remove("folder")
        await sandbox.remove("folder", recursive=True)
        with pytest.raises(FileNotFound):
            await sandbox.stat("folder")

    async def test_removing_a_link_leaves_its_target(self, sandbox: Sandbox) -> None:
        await sandbox.write("folder/file", b"here")
        await sandbox.exec(Command(shell="ln -s folder link"))
        await sandbox.remove("link", recursive=True)
        assert await content(sandbox, "folder/file") == b"here"

    async def test_rename_replaces_a_file(self, sandbox: Sandbox) -> None:
        await sandbox.write("one", b"1")
        await sandbox.write("two", b"2")
        await sandbox.rename("one", "two")
        assert await content(sandbox, "two") == b"1"
        with pytest.raises(FileNotFound):
            await sandbox.stat("one")

    # What goes wrong.

    async def test_what_is_not_there_is_not_found(self, sandbox: Sandbox) -> None:
        for call in (
            content(sandbox, "nothing"), sandbox.stat("nothing"), sandbox.list("nothing"), sandbox.remove("nothing"),
            sandbox.rename("nothing", "x"), content(sandbox, "no/thing"), sandbox.list("/no/where"),
        ):  # fmt: skip
            with pytest.raises(FileNotFound):
                await call
        with pytest.raises(FileNotFound):
            await anext(sandbox.pack("nothing"))
        with pytest.raises(FileNotFound):
            await anext(sandbox.watch("nothing"))

    async def test_a_directory_is_not_a_file(self, sandbox: Sandbox) -> None:
        await sandbox.mkdir("folder")
        for call in (content(sandbox, "folder"), sandbox.write("folder", b"x"), sandbox.remove("folder")):
            with pytest.raises(IsDirectory):
                await call

    async def test_a_file_is_not_a_directory(self, sandbox: Sandbox) -> None:
        await sandbox.write("file", b"")
        for call in (
            sandbox.list("file"), content(sandbox, "file/below"), sandbox.stat("file/below"),
            sandbox.write("file/below", b""), sandbox.mkdir("file/below"),
        ):  # fmt: skip
            with pytest.raises(NotADirectory):
                await call

    async def test_what_belongs_to_others_is_denied(self, sandbox: Sandbox) -> None:
        await sandbox.write("locked", b"secret", mode=0o000)
        await sandbox.mkdir("closed", mode=0o000)
        for call in (
            content(sandbox, "locked"), sandbox.list("closed"), sandbox.stat("closed/x"),
            sandbox.write("closed/x", b""), sandbox.write("/etc/warren-test", b""), sandbox.mkdir("/etc/warren-test"),
        ):  # fmt: skip
            with pytest.raises(PermissionDenied):
                await call

    async def test_a_path_that_cannot_be_is_invalid(self, sandbox: Sandbox) -> None:
        for path in ("", "a\0b", "a" * 256, "/".join(["a"] * 3000)):
            with pytest.raises(InvalidPath):
                await sandbox.stat(path)
            with pytest.raises(InvalidPath):
                await sandbox.write(path, b"")

    async def test_an_unknown_user_is_refused(self, sandbox: Sandbox) -> None:
        with pytest.raises(UnknownUser):
            await sandbox.write("x", b"", user="nobody-at-all")
        with pytest.raises(UnknownUser):
            await sandbox.stat("/", user="nobody-at-all")

    # Whole directories.

    async def test_a_directory_goes_out_and_in_again(self, sandbox: Sandbox) -> None:
        await sandbox.write("src/run.sh", b"exit 9", mode=0o755)
        await sandbox.write("src/data/big", b"z" * 1_500_001)
        await sandbox.write("src/data/empty", b"")
        await sandbox.write("src/data/block", b"b" * 512)
        await sandbox.mkdir("src/nothing")
        await sandbox.write("src/" + "n" * 200 + "/ünïcödé " + "m" * 150, b"long")
        await sandbox.exec(Command(shell="ln -s data/big src/link"))
        count = await sandbox.unpack("copy/of/it", sandbox.pack("src"))
        assert count == 9
        before = await sandbox.list("src", depth=9)
        after = await sandbox.list("copy/of/it", depth=9)
        cut = len("/workspace/src"), len("/workspace/copy/of/it")
        assert {(info.path[cut[0] :], info.kind, info.mode, info.target) for info in before} == {
            (info.path[cut[1] :], info.kind, info.mode, info.target) for info in after
        }
        assert await content(sandbox, "copy/of/it/data/big") == b"z" * 1_500_001
        assert {info.uid for info in after} == {await self.user_uid(sandbox)}

    async def test_a_packed_directory_is_an_ordinary_tar(self, sandbox: Sandbox) -> None:
        await sandbox.write("src/file", b"content", mode=0o640)
        await sandbox.write("src/sub/other", b"x" * 1000)
        tar = await packed(sandbox, "src")
        assert sorted(tar.getnames()) == ["file", "sub", "sub/other"]
        member = tar.getmember("file")
        assert (member.size, member.mode, member.uid) == (7, 0o640, await self.user_uid(sandbox))
        other = tar.extractfile("sub/other")
        assert other is not None
        assert other.read() == b"x" * 1000

    async def test_an_empty_directory_packs_to_an_empty_tar(self, sandbox: Sandbox) -> None:
        await sandbox.mkdir("empty")
        assert (await packed(sandbox, "empty")).getnames() == []

    async def test_a_packer_may_leave_early(self, sandbox: Sandbox) -> None:
        await sandbox.write("src/big", bytes(8 * MIB))
        packing = sandbox.pack("src")
        await anext(packing)
        await packing.aclose()  # type: ignore[attr-defined]
        await sandbox.ping()

    async def test_unpacking_replaces_files_and_keeps_others(self, sandbox: Sandbox) -> None:
        await sandbox.write("d/old", b"1")
        await sandbox.write("d/kept", b"2")
        assert await sandbox.unpack("d", tar_of(("./", None, {"type": tarfile.DIRTYPE}), ("./old", b"new", {}))) == 1
        assert await content(sandbox, "d/old") == b"new"
        assert await content(sandbox, "d/kept") == b"2"

    @pytest.mark.parametrize(
        "member",
        [
            ("/tmp/out", b"x", {}),
            ("../out", b"x", {}),
            ("a/../../out", b"x", {}),
            ("link", None, {"type": tarfile.SYMTYPE, "linkname": "/etc"}),
            ("link", None, {"type": tarfile.SYMTYPE, "linkname": "../.."}),
            ("a/link", None, {"type": tarfile.SYMTYPE, "linkname": "../../out"}),
            ("hard", None, {"type": tarfile.LNKTYPE, "linkname": "good"}),
            ("device", None, {"type": tarfile.CHRTYPE}),
            ("block", None, {"type": tarfile.BLKTYPE}),
            ("fifo", None, {"type": tarfile.FIFOTYPE}),
        ],
        ids=lambda member: str(member[0]) + str(member[2].get("linkname", "")),
    )
    async def test_hostile_members_are_refused_by_name(
        self, sandbox: Sandbox, member: tuple[str, bytes | None, dict[str, object]]
    ) -> None:
        with pytest.raises(InvalidRequest) as caught:
            await sandbox.unpack("into", tar_of(("good", b"1", {}), member))
        assert repr(member[0]) in str(caught.value)
        assert (await sandbox.exec(Command(shell="test -e /workspace/out"))).exit_code == 1
        assert (await sandbox.exec(Command(shell="test -e /tmp/out"))).exit_code == 1

    async def test_nothing_is_unpacked_through_a_link_of_the_archive(self, sandbox: Sandbox) -> None:
        tar = tar_of(("a", None, {"type": tarfile.SYMTYPE, "linkname": "b"}), ("a/file", b"x", {}))
        with pytest.raises(InvalidRequest, match="beneath a link"):
            await sandbox.unpack("into", tar)

    async def test_what_is_no_tar_is_refused(self, sandbox: Sandbox) -> None:
        for data in (b"", b"this is not a tar" * 100, b"\x1f\x8b" + bytes(600), tar_of(("x", b"1" * 5000, {}))[:2000]):
            with pytest.raises(InvalidRequest):
                await sandbox.unpack("into", data)

    # Watching.

    async def test_changes_are_reported(self, sandbox: Sandbox) -> None:
        await sandbox.mkdir("watched")
        events = await self.events_while(sandbox, "watched", False, self.some_changes(sandbox))
        assert (Change.CREATED, "/workspace/watched/made", True) in events
        assert (Change.MOVED_FROM, "/workspace/watched/made", True) in events
        assert (Change.MOVED_TO, "/workspace/watched/moved", True) in events
        assert (Change.REMOVED, "/workspace/watched/moved", True) in events
        assert not [path for _, path, _ in events if "below" in path]

    async def some_changes(self, sandbox: Sandbox) -> None:
        await sandbox.mkdir("watched/made")
        await sandbox.rename("watched/made", "watched/moved")
        await sandbox.mkdir("watched/moved/below")
        await sandbox.remove("watched/moved", recursive=True)

    async def test_a_recursive_watch_sees_what_lies_below(self, sandbox: Sandbox) -> None:
        await sandbox.mkdir("watched/deep/deeper")

        async def change() -> None:
            await sandbox.mkdir("watched/deep/deeper/made")

        events = await self.events_while(sandbox, "watched", True, change())
        assert (Change.CREATED, "/workspace/watched/deep/deeper/made", True) in events

    async def events_while(
        self, sandbox: Sandbox, path: str, recursive: bool, change: "asyncio.Future[None] | object"
    ) -> list[tuple[Change, str, bool]]:
        """The events of a change: from the watch's own word that it is on, to a mark that ends it."""
        seen: list[FileEvent] = []
        begun, ended = asyncio.Event(), asyncio.Event()

        async def watch() -> None:
            async for event in sandbox.watch(path, recursive=recursive):
                seen.append(event)
                if event.change is Change.WATCHING:
                    begun.set()
                if event.path.endswith("/end"):
                    ended.set()

        watching = asyncio.ensure_future(watch())
        with anyio.fail_after(10):
            await begun.wait()
        await change  # type: ignore[misc]
        await sandbox.write(f"{path}/end", b"")
        with anyio.fail_after(10):
            await ended.wait()
        watching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await watching
        return [(event.change, event.path, event.directory) for event in seen]

    async def test_a_watch_hears_when_the_sandbox_is_lost(self, provider: Provider, sandbox: Sandbox) -> None:
        events = sandbox.watch("/workspace")
        assert (await anext(events)).change is Change.WATCHING
        watching = asyncio.ensure_future(anext(events))
        await self.lose(provider, sandbox)
        with anyio.fail_after(10), pytest.raises(SandboxLost):
            await watching

    async def test_a_sync_waits_for_every_change_and_no_longer(self, sandbox: Sandbox) -> None:
        """A file that is written in place is created, given to the user and modified; nothing of it is late."""
        seen: list[tuple[Change, str]] = []
        watch = sandbox.watch("/workspace", recursive=True, attributes=True)
        with pytest.raises(Conflict):
            await watch.sync()

        async def collect() -> None:
            async for event in watch:
                seen.append((event.change, event.path.removeprefix("/workspace/")))

        collecting = asyncio.ensure_future(collect())
        with anyio.fail_after(30):
            while not seen:
                await asyncio.sleep(0.001)
            for number in range(20):
                seen.clear()
                await sandbox.write(f"file-{number}", b"new", in_place=True)
                await watch.sync()
                steps = [Change.CREATED, Change.ATTRIBUTES, Change.MODIFIED]
                assert seen == [(step, f"file-{number}") for step in steps]
            seen.clear()
            await sandbox.write("file-0", b"with metadata", in_place=True, metadata={"key": "value"})
            await asyncio.gather(watch.sync(), watch.sync(), watch.sync())
            assert seen[0] == (Change.ATTRIBUTES, "file-0")
            assert set(seen[1:-1]) == {(Change.MODIFIED, "file-0")}
            assert seen[-1] == (Change.ATTRIBUTES, "file-0")
            seen.clear()
            await sandbox.rename("file-0", "moved")
            await watch.sync()
            assert seen == [(Change.MOVED_FROM, "file-0"), (Change.MOVED_TO, "moved")]
            seen.clear()
            await sandbox.write("just/made/file", b"new", in_place=True)
            await watch.sync()
            assert {(Change.CREATED, "just/made/file"), (Change.MODIFIED, "just/made/file")} <= set(seen)
        collecting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await collecting
        with pytest.raises(Conflict):
            await asyncio.wait_for(watch.sync(), 10)
        await watch.aclose()
        await watch.aclose()

    async def test_a_watch_that_does_not_ask_sees_attributes_as_changes(self, sandbox: Sandbox) -> None:
        async def change() -> None:
            await sandbox.write("watched/file", b"", in_place=True)

        await sandbox.mkdir("watched")
        events = await self.events_while(sandbox, "watched", False, change())
        assert events[1:3] == [
            (Change.CREATED, "/workspace/watched/file", False),
            (Change.MODIFIED, "/workspace/watched/file", False),
        ]

    # Details, metadata, writing in place.

    async def test_details_name_the_owner_and_what_a_link_leads_to(self, sandbox: Sandbox) -> None:
        await sandbox.write("folder/file", b"12345", mode=0o640)
        await sandbox.exec(Command(shell="ln -s folder/file link; ln -s ../folder folder/up; ln -s nowhere broken"))
        plain = await sandbox.stat("folder/file")
        assert (plain.owner, plain.group, plain.metadata) == ("", "", {})
        info = await sandbox.stat("folder/file", details=True)
        who = (await sandbox.exec(Command(shell="whoami"))).stdout.strip()
        assert (info.owner, info.size, info.target_kind) == (who, 5, None)
        assert info.group
        link = await sandbox.stat("link", details=True)
        assert (link.kind, link.target, link.size) == (FileKind.SYMLINK, "folder/file", len("folder/file"))
        assert (link.target_path, link.target_kind) == ("/workspace/folder/file", FileKind.FILE)
        assert link.target_mode == 0o640
        broken = await sandbox.stat("broken", details=True)
        assert (broken.target, broken.target_path, broken.target_kind) == ("nowhere", "", None)
        found = await sandbox.list("/workspace", depth=2, details=True)
        names = ["broken", "folder", "folder/file", "folder/up", "link"]
        assert [info.path for info in found] == [f"/workspace/{name}" for name in names]
        listed = {info.path: info for info in found}
        assert listed["/workspace/folder/file"] == info
        assert listed["/workspace/folder/up"].target_kind is FileKind.DIRECTORY
        assert listed["/workspace/link"] == link

    async def test_metadata_is_kept_until_it_is_replaced(self, sandbox: Sandbox) -> None:
        first = {"author": "me", "empty": "", "ünï": "cödé = 1"}
        for in_place in (True, False):
            written = await sandbox.write("file", b"1", in_place=in_place, metadata=first)
            assert written.metadata == first
            await sandbox.rename("file", "moved")
            assert (await sandbox.stat("moved", details=True)).metadata == first
            assert [info.metadata for info in await sandbox.list("/workspace", details=True)] == [first]
            await sandbox.write("moved", b"2", in_place=in_place, metadata={"author": "you"})
            assert (await sandbox.stat("moved", details=True)).metadata == {"author": "you"}
            await sandbox.write("moved", b"3", in_place=in_place, metadata={})
            assert (await sandbox.stat("moved", details=True)).metadata == {}
            assert await content(sandbox, "moved") == b"3"
            await sandbox.remove("moved")

    @pytest.mark.parametrize(
        "metadata",
        [{"": "x"}, {"a=b": "x"}, {"a": "\0"}, {"a" * 247: ""}, {"a": "x" * 4096}, {str(n): "" for n in range(65)}],
    )
    async def test_metadata_that_cannot_be_kept_is_refused(self, sandbox: Sandbox, metadata: dict[str, str]) -> None:
        with pytest.raises(InvalidRequest):
            await sandbox.write("file", b"x", in_place=True, metadata=metadata)
        assert await sandbox.list("/workspace") == []

    async def test_writing_in_place_keeps_mode_and_makes_parents(self, sandbox: Sandbox) -> None:
        info = await sandbox.write("a/b/file", b"the old content", in_place=True)
        assert (info.path, info.size, info.mode) == ("/workspace/a/b/file", 15, 0o644)
        assert info.uid == await self.user_uid(sandbox)
        await sandbox.write("a/b/file", b"", mode=0o700)
        assert (await sandbox.write("a/b/file", b"new", in_place=True)).mode == 0o700
        await sandbox.exec(Command(shell="ln -s file a/b/link"))
        await sandbox.write("a/b/link", b"through the link", in_place=True)
        assert await content(sandbox, "a/b/file") == b"through the link"
        assert (await sandbox.stat("a/b/link")).kind is FileKind.SYMLINK
        with pytest.raises(IsDirectory):
            await sandbox.write("a", b"", in_place=True)
        with pytest.raises(UnknownUser):
            await sandbox.write("x", b"", in_place=True, owner="nobody-at-all")

    # Searching.

    @pytest.mark.parametrize(
        ("glob", "expected"),
        [
            ("*.py", {"main.py", "src/a.py", "src/deep/b.py"}),
            ("*.{py,md}", {"main.py", "src/a.py", "src/deep/b.py", "docs/README.md"}),
            ("src/*.py", {"src/a.py"}),
            ("/*.py", {"main.py"}),
            ("src/**/*.py", {"src/a.py", "src/deep/b.py"}),
            ("**/b.py", {"src/deep/b.py"}),
            ("src/**", {"src/a.py", "src/deep", "src/deep/b.py"}),
            ("**/deep/**/b.py", {"src/deep/b.py"}),
            ("?.py", {"src/a.py", "src/deep/b.py"}),
            ("[!a].py", {"src/deep/b.py"}),
            ("[a-c].p[xy]", {"src/a.py", "src/deep/b.py"}),
            ("deep", {"src/deep"}),
            ("sn?w", {"snöw"}),
            ("\\*", set()),
            ("a.py/b", set()),
        ],
    )
    async def test_files_are_found_by_name(self, sandbox: Sandbox, glob: str, expected: set[str]) -> None:
        for path in ("main.py", "src/a.py", "src/deep/b.py", "docs/README.md", "snöw"):
            await sandbox.write(path, b"x")
        matches, summary = await found(sandbox, Search(glob=glob))
        assert {match.path for match in matches} == {f"/workspace/{path}" for path in expected}
        assert summary == SearchTotals(len(expected))
        assert not summary.truncated

    async def test_names_tell_what_they_belong_to(self, sandbox: Sandbox) -> None:
        await sandbox.write("a/file", b"x")
        await sandbox.exec(Command(shell="ln -s / a/link"))
        matches, _ = await found(sandbox, Search(glob="*"))
        assert matches == [
            SearchMatch("/workspace/a", FileKind.DIRECTORY),
            SearchMatch("/workspace/a/file", FileKind.FILE),
            SearchMatch("/workspace/a/link", FileKind.SYMLINK),
        ]

    async def test_lines_are_found_by_content(self, sandbox: Sandbox) -> None:
        await sandbox.write("b.txt", b"one\n\n  two three\r\nlast two")
        await sandbox.write("a.txt", b"two\n")
        await sandbox.write("c.txt", b"nothing of it\n")
        matches, summary = await found(sandbox, Search(pattern="two( three$|$)"))
        assert matches == [
            SearchMatch("/workspace/a.txt", FileKind.FILE, 1, 1, "two"),
            SearchMatch("/workspace/b.txt", FileKind.FILE, 3, 3, "  two three"),
            SearchMatch("/workspace/b.txt", FileKind.FILE, 4, 6, "last two"),
        ]
        assert summary == SearchTotals(3, files_searched=3)

    @pytest.mark.parametrize(
        ("pattern", "lines"),
        [
            ("import os", {1}), ("^import", {1, 2}), ("[[:digit:]]+", {3}), ("re?turn", {3}), ("x{2}y", {4}),
            ("(left|right)side", {5}), ("a\\.b", {6}), ("a.b", {6, 7}), ("[]x]y", {4}), ("ab*c", {8}),
            ("ö+l", {9}), ("^.l", {9}), ("zz(top)?", {10}), ("nothing", set()),
        ],
    )  # fmt: skip
    async def test_expressions(self, sandbox: Sandbox, pattern: str, lines: set[int]) -> None:
        content = "import os\nimport re\n    return 7\nxxy\nrightside\na.b\na_b\nac\nöl\nzz\n"
        await sandbox.write("file", content.encode())
        matches, _ = await found(sandbox, Search(pattern=pattern))
        assert {match.line for match in matches} == lines

    async def test_a_glob_says_which_contents_are_searched(self, sandbox: Sandbox) -> None:
        await sandbox.write("src/a.py", b"needle")
        await sandbox.write("src/a.txt", b"needle")
        matches, summary = await found(sandbox, Search(path="src", glob="*.py", pattern="needle"))
        assert [match.path for match in matches] == ["/workspace/src/a.py"]
        assert summary.files_searched == 1
        matches, _ = await found(sandbox, Search(path="/workspace/src/a.txt", pattern="needle"))
        assert [match.path for match in matches] == ["/workspace/src/a.txt"]

    async def test_case_is_ignored_if_asked(self, sandbox: Sandbox) -> None:
        await sandbox.write("Makefile", b"Needle\nneedle\n")
        for ignore_case, count in ((False, 1), (True, 2)):
            _, summary = await found(sandbox, Search(pattern="needle", ignore_case=ignore_case))
            assert summary.matches == count
            _, summary = await found(sandbox, Search(glob="makefile", ignore_case=ignore_case))
            assert summary.matches == count - 1

    async def test_hidden_names_are_left_out_and_counted(self, sandbox: Sandbox) -> None:
        await sandbox.write(".git/config", b"needle")
        await sandbox.write(".env", b"needle")
        await sandbox.write("seen", b"needle")
        matches, summary = await found(sandbox, Search(pattern="needle"))
        assert [match.path for match in matches] == ["/workspace/seen"]
        assert summary.hidden == 2
        matches, summary = await found(sandbox, Search(pattern="needle", hidden=True))
        assert [match.path for match in matches] == ["/workspace/.env", "/workspace/.git/config", "/workspace/seen"]
        assert summary.hidden == 0

    async def test_a_search_follows_no_link(self, sandbox: Sandbox) -> None:
        await sandbox.write("real/file", b"needle")
        await sandbox.exec(Command(shell="ln -s / all; ln -s . self; ln -s real/file alias"))
        matches, summary = await found(sandbox, Search(pattern="needle"))
        assert [match.path for match in matches] == ["/workspace/real/file"]
        assert summary == SearchTotals(1, files_searched=1)

    async def test_what_was_not_searched_is_counted(self, sandbox: Sandbox) -> None:
        await sandbox.write("binary", b"needle\n\0")
        await sandbox.write("large", b"needle" * 1000)
        await sandbox.write("locked", b"needle", mode=0o000)
        await sandbox.mkdir("closed", mode=0o000)
        await sandbox.write("text", b"needle")
        await sandbox.write("empty", b"")
        matches, summary = await found(sandbox, Search(pattern="needle", max_file_bytes=1000))
        assert [match.path for match in matches] == ["/workspace/text"]
        assert summary == SearchTotals(1, files_searched=2, binary=1, too_large=1, unreadable=2)

    async def test_a_search_that_was_cut_says_so(self, sandbox: Sandbox) -> None:
        await sandbox.write("three", b"1\n2\n3\n")
        for limit, cut in ((2, SearchLimit.MAX_MATCHES), (3, None)):
            matches, summary = await found(sandbox, Search(pattern="[0-9]", max_matches=limit))
            assert [match.line for match in matches] == [1, 2, 3][:limit]
            assert (summary.truncated_by, summary.truncated) == (cut, cut is not None)

    async def test_a_long_line_is_shown_in_part(self, sandbox: Sandbox) -> None:
        await sandbox.write("long", ("ä" * 5000 + "needle" + "ö" * 5000).encode())
        matches, summary = await found(sandbox, Search(pattern="needle"))
        assert (matches[0].line, matches[0].column, matches[0].text_truncated) == (1, 10001, True)
        assert "ääneedleöö" in matches[0].text
        assert len(matches[0].text.encode()) <= 500
        assert summary.long_lines == 0

    async def test_of_an_endless_line_the_beginning_is_searched(self, sandbox: Sandbox) -> None:
        line = b"first" + b" " * 2 * MIB + b"last"
        await sandbox.write("endless", line + b"\nfirst last\n" + line)
        matches, summary = await found(sandbox, Search(pattern="first"))
        assert [match.line for match in matches] == [1, 2, 3]
        assert summary == SearchTotals(3, files_searched=1, long_lines=2)
        matches, _ = await found(sandbox, Search(pattern="last"))
        assert [match.line for match in matches] == [2]

    async def test_bytes_that_are_no_text_are_searched(self, sandbox: Sandbox) -> None:
        await sandbox.write("latin", b"na\xefve needle here\n")
        await sandbox.write("bad\udcff", b"a needle")
        matches, _ = await found(sandbox, Search(pattern="needle|nadel"))
        assert [(match.path, match.text) for match in matches] == [
            ("/workspace/bad\udcff", "a needle"),
            ("/workspace/latin", "na\udcefve needle here"),
        ]
        matches, _ = await found(sandbox, Search(glob="bad\udcff"))
        assert [match.path for match in matches] == ["/workspace/bad\udcff"]

    async def test_many_matches_come_one_after_the_other(self, sandbox: Sandbox) -> None:
        await sandbox.write("many", b"".join(b"line %d %s\n" % (n, b"." * 60) for n in range(1, 40_001)))
        matches, _ = await found(sandbox, Search(pattern="^line", max_matches=100_000))
        assert [match.line for match in matches] == list(range(1, 40_001))

    @pytest.mark.parametrize("pattern", ["(", "[a", "a{2,1}", "x)("])
    async def test_an_expression_that_is_not_valid_is_refused(self, sandbox: Sandbox, pattern: str) -> None:
        await sandbox.write("file", b"x")
        with pytest.raises(InvalidRequest, match="regular expression is invalid: "):
            await anext(sandbox.search(Search(pattern=pattern)))

    async def test_a_search_needs_a_place_and_the_right_to_it(self, sandbox: Sandbox) -> None:
        await sandbox.mkdir("closed", mode=0o000)
        with pytest.raises(FileNotFound):
            await anext(sandbox.search(Search(path="nothing", glob="*")))
        with pytest.raises(PermissionDenied):
            await anext(sandbox.search(Search(path="closed", glob="*")))
        with pytest.raises(UnknownUser):
            await anext(sandbox.search(Search(glob="*", user="nobody-at-all")))

    async def test_a_search_may_be_left_early(self, sandbox: Sandbox) -> None:
        await sandbox.write("many", b"line\n" * 200_000)
        searching = sandbox.search(Search(pattern="line", max_matches=100_000))
        assert isinstance(await anext(searching), SearchMatch)
        await searching.aclose()  # type: ignore[attr-defined]
        await sandbox.ping()

    async def test_a_search_hears_when_the_sandbox_is_lost(self, provider: Provider, sandbox: Sandbox) -> None:
        await sandbox.write("many", b"line %s\n" % (b"." * 100) * 90_000)
        searching = sandbox.search(Search(pattern="line", max_matches=100_000))
        assert isinstance(await anext(searching), SearchMatch)
        await self.lose(provider, sandbox)
        with anyio.fail_after(10), pytest.raises(SandboxLost):
            async for _ in searching:
                pass
