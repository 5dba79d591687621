"""What every AsyncSandboxClient does with files and terminals, over HTTP and on this machine alike."""

import contextlib
import io
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from warren.model.errors import (
    FileExists,
    FileNotFound,
    FileProblem,
    InvalidPath,
    InvalidRequest,
    IsDirectory,
    NotADirectory,
    UnknownUser,
)
from warren.sdk.aio.client import AsyncSandboxClient
from warren.sdk.aio.platform import run_parallel
from warren.sdk.results import SearchSummary

New = Callable[..., AsyncSandboxClient]
ODD_NAMES = ["two words", "-dash", "ünï", "100%", "a#b?c&d=e+f", "line\nbreak", "%41", "semi;colon"]


class AsyncFilesContract:
    pytestmark = pytest.mark.anyio

    async def test_a_file_is_written_and_read(self, new: New) -> None:
        async with new() as client:
            written = await client.write_file("made/on/the/way.txt", "hällo", mode=0o600)
            assert (written.path, written.size, written.mode) == ("/workspace/made/on/the/way.txt", 6, "0600")
            assert await client.read_file("made/on/the/way.txt") == "hällo".encode()
            assert await client.read_text("/workspace/made/on/the/way.txt") == "hällo"

    async def test_a_user_of_the_sandbox_reads_and_writes(self, new: New, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("1")
        async with new() as client:
            user = (await client.create_session()).user
            await client.write_file("file", "1", user=user)
            assert await client.read_text("file", user=user) == "1"
            with pytest.raises(UnknownUser):
                await client.write_file("file", "2", user="nobody-knows")
            with pytest.raises(UnknownUser):
                await client.upload_file(tmp_path / "file", "file", user="nobody-knows")
            with pytest.raises(UnknownUser):
                await client.upload_dir(tmp_path, "there", user="nobody-knows")
            with pytest.raises(UnknownUser):
                await client.read_file("file", user="nobody-knows")
            with pytest.raises(UnknownUser):
                await client.download_file("file", tmp_path / "got", user="nobody-knows")
            with pytest.raises(UnknownUser):
                await client.download_dir("/workspace", tmp_path / "got", user="nobody-knows")
            assert await client.read_text("file") == "1"

    @pytest.mark.parametrize("name", ODD_NAMES)
    async def test_odd_names_are_kept(self, new: New, name: str, tmp_path: Path) -> None:
        async with new() as client:
            await client.write_file(name, name)
            assert await client.read_text(name) == name
            [entry] = await client.list_files()
            assert (entry.name, entry["name"]) == (name, name)
            assert (await client.download_file(name, tmp_path / "got")).read_text() == name

    async def test_artifacts_outlive_the_session(self, new: New, tmp_path: Path) -> None:
        async with new() as client:
            await client.write_file("artifacts/end.txt", "at the end")
            result = await client.execute("echo plot > plot.png", save_artifacts=["*.png"])
            assert result.saved is not None
            assert [one.name for one in result.saved.artifacts] == ["plot.png"]
            saved = await client.artifacts.save("plot.png")
            assert (saved.artifacts[0], saved.left_out) == (result.saved.artifacts[0], [])
            assert (await client.artifacts.save(["gone"])).left_out[0]["path"] == "gone"
            await client.cleanup()
            first, last = await client.artifacts.list()
            assert (first.name, last.name, last.mime_type) == ("end.txt", "plot.png", "image/png")
            assert await client.artifacts.list(name="*.png", everywhere=True) == [last]
            assert await client.artifacts.get(last.artifact_id) == last
            assert await client.artifacts.read(first) == b"at the end"
            assert (await client.artifacts.download(last, tmp_path)).read_text() == "plot\n"
            async with new() as another:  # a client without a thread sees those of its own session
                await another.execute("echo plot > other.png", save_artifacts=["*.png"])
                [other] = await another.artifacts.list()
                assert other.name == "other.png"
                assert await client.artifacts.list() == [first, last]
            for one in (first, last, other):
                await client.artifacts.delete(one)
            assert await client.artifacts.list() == []

    async def test_a_file_goes_up_and_comes_down_with_its_progress(self, new: New, tmp_path: Path) -> None:
        data = bytes(range(256)) * 4096 * 5
        (tmp_path / "big").write_bytes(data)
        up: list[tuple[int, int | None]] = []
        down: list[tuple[int, int | None]] = []
        async with new() as client:
            entry = await client.upload_file(
                tmp_path / "big", "copy", progress=lambda done, size: up.append((done, size))
            )
            assert entry.size == len(data)
            target = await client.download_file(
                "copy", tmp_path / "back", progress=lambda done, size: down.append((done, size))
            )
        assert target == tmp_path / "back"
        assert target.read_bytes() == data
        assert up[-1] == down[-1] == (len(data), len(data))
        assert len(up) > 1
        assert sorted(path.name for path in tmp_path.iterdir()) == ["back", "big"]

    async def test_many_downloads_to_one_place_at_once_give_a_whole_file(self, new: New, tmp_path: Path) -> None:
        target = tmp_path / ("x" * 250)
        async with new() as client:
            for letter in "abcd":
                await client.write_file(letter, letter * 700_000)
            calls = [partial(client.download_file, letter, target) for letter in "abcd"]
            assert await run_parallel(calls, 4) == [target] * 4
        data = target.read_text()
        assert data == data[0] * 700_000
        assert list(tmp_path.iterdir()) == [target]

    async def test_a_pipe_is_uploaded_to_its_end(self, new: New) -> None:
        reading, writing = os.pipe()
        with os.fdopen(reading, "rb"), os.fdopen(writing, "wb") as end:
            end.write(b"from a pipe")
            end.close()
            async with new() as client:
                assert (await client.upload_file(f"/dev/fd/{reading}", "piped")).size == 11
                assert await client.read_text("piped") == "from a pipe"

    async def test_an_uploaded_file_is_called_as_it_was(self, new: New, tmp_path: Path) -> None:
        (tmp_path / "script.py").write_text("print(1)")
        async with new() as client:
            assert (await client.upload_file(str(tmp_path / "script.py"))).path == "/workspace/script.py"
            assert await client.download_file("script.py", tmp_path) == tmp_path / "script.py"

    async def test_an_empty_file_is_a_file(self, new: New, tmp_path: Path) -> None:
        (tmp_path / "empty").touch()
        async with new() as client:
            await client.upload_file(tmp_path / "empty")
            assert await client.read_file("empty") == b""

    async def test_a_part_of_a_file_is_read(self, new: New) -> None:
        async with new() as client:
            await client.write_file("f", "0123456789")
            assert await client.read_file("f", offset=3, length=4) == b"3456"
            assert await client.read_file("f", offset=8) == b"89"
            assert await client.read_file("f", length=2) == b"01"
            assert await client.read_file("f", offset=8, length=100) == b"89"
            assert await client.read_file("f", offset=10) == b""
            assert await client.read_file("f", offset=99, length=1) == b""
            assert await client.read_file("f", length=0) == b""
            await client.write_file("empty", "")
            assert await client.read_file("empty", length=5) == b""
            with pytest.raises(FileNotFound):
                await client.read_file("nothing", offset=1)
            with pytest.raises(InvalidRequest, match="cannot be read"):
                await client.read_file("f", offset=-1)

    async def test_a_file_is_written_from_what_gives_bytes_piece_by_piece(self, new: New, tmp_path: Path) -> None:
        (tmp_path / "here").write_bytes(bytes(range(256)) * 4000)
        async with new() as client:
            with (tmp_path / "here").open("rb") as file:
                assert (await client.write_file("from a file", file, mode=0o640)).mode == "0640"
            assert await client.read_file("from a file") == (tmp_path / "here").read_bytes()
            written = await client.write_file("counted", (b"%d\n" % number for number in range(1000)))
            assert written.size == sum(len(str(number)) + 1 for number in range(1000))
            assert (await client.write_file("nothing", [])).size == 0
            await client.write_file("listed", [b"a", b"", b"b"])
            assert await client.read_file("listed") == b"ab"

    async def test_pieces_that_fail_leave_the_old_file_and_the_caller_hears_why(self, new: New) -> None:
        def failing() -> Iterator[bytes]:
            yield b"half"
            raise ZeroDivisionError

        async with new() as client:
            await client.write_file("f", "old")
            with pytest.raises(ZeroDivisionError):
                await client.write_file("f", failing())
            with pytest.raises(InvalidRequest, match="not bytes"):
                await client.write_file("f", io.StringIO("text"))  # type: ignore[arg-type]
            with pytest.raises(InvalidRequest, match="the data is int"):
                await client.write_file("f", 5)  # type: ignore[arg-type]
            assert await client.read_text("f") == "old"

    async def test_pieces_go_into_the_fresh_session_of_a_thread_whole(self, new: New) -> None:
        async with new(thread_id="pieces") as client:
            await client._backend.call("delete_session", client.session_id)
            await client.write_file("f", iter([b"first", b"second"]))
            assert await client.read_file("f") == b"firstsecond"
            await client.cleanup()

    async def test_a_link_comes_down_with_the_size_of_what_it_leads_to(self, new: New, tmp_path: Path) -> None:
        seen: list[tuple[int, int | None]] = []
        async with new() as client:
            await client.execute("printf 12345678901234567890 > target; ln -s target link")
            await client.download_file("link", tmp_path / "got", progress=lambda *done: seen.append(done))
        assert seen[-1] == (20, 20)

    async def test_a_tree_goes_up_and_comes_down(self, new: New, tmp_path: Path) -> None:
        tree = tmp_path / "tree"
        (tree / "sub").mkdir(parents=True)
        (tree / "a.txt").write_text("a")
        (tree / "sub" / "b.txt").write_text("b")
        (tree / "sub" / "run").write_text("#!/bin/sh\n")
        (tree / "sub" / "run").chmod(0o755)
        async with new() as client:
            assert await client.upload_dir(tree, "/workspace/there") == 4
            paths = {entry.path for entry in await client.list_files("there", depth=9)}
            assert "/workspace/there/sub/b.txt" in paths
            assert (await client.stat("there/sub/run")).mode == "0755"
            back = await client.download_dir("there", tmp_path / "back")
        assert (back / "sub" / "b.txt").read_text() == "b"
        assert (back / "a.txt").read_text() == "a"

    async def test_directories_are_made_moved_and_removed(self, new: New) -> None:
        async with new() as client:
            assert (await client.mkdir("one/two")).is_dir
            await client.write_file("one/two/f", "1")
            assert (await client.move("one/two/f", "one/g")).path == "/workspace/one/g"
            assert await client.exists("one/g")
            assert not await client.exists("one/two/f")
            await client.remove("one/g")
            await client.remove("one", recursive=True)
            assert await client.list_files() == []

    async def test_a_directory_may_exist_already_if_the_caller_says_so(self, new: New) -> None:
        async with new() as client:
            await client.mkdir("one")
            await client.write_file("one/f", "1")
            with pytest.raises(FileExists):
                await client.mkdir("one")
            assert (await client.mkdir("one", exist_ok=True)).is_dir
            assert await client.read_file("one/f") == b"1"
            with pytest.raises((FileExists, NotADirectory)):
                await client.mkdir("one/f", exist_ok=True)

    async def test_the_path_without_links_is_found(self, new: New) -> None:
        async with new() as client:
            await client.execute(
                "mkdir -p a/b; ln -s a/b short; ln -s /workspace/short/../c far; echo 1 > a/c; ln -s l l"
            )
            assert await client.realpath("short") == "/workspace/a/b"
            assert await client.realpath("/workspace/./far") == "/workspace/a/c"
            assert await client.realpath("..") == "/"
            for path, error in (("nothing", FileNotFound), ("l", InvalidPath), ("a/c/d", NotADirectory)):
                with pytest.raises(error):
                    await client.realpath(path)

    async def test_trees_travel_as_tars(self, new: New, tmp_path: Path) -> None:
        async with new() as client:
            await client.execute("mkdir -p from/sub; echo 1 > from/sub/f; chmod 750 from/sub/f")
            tar = b"".join([part async for part in client.read_archive("from")])
            assert await client.write_archive(tar, "to") == 2
            (tmp_path / "tar").write_bytes(tar)
            with (tmp_path / "tar").open("rb") as file:
                assert await client.write_archive(file, "again") == 2
            assert (await client.stat("to/sub/f")).mode == "0750"
            assert await client.read_file("again/sub/f") == b"1\n"

    async def test_what_a_command_makes_is_seen_by_the_file_verbs(self, new: New) -> None:
        async with new() as client:
            await client.execute("mkdir -p d && echo made > d/f")
            entry = await client.stat("d/f")
            assert (entry.kind, entry.size, entry.uid) == ("file", 5, 1000)
            assert type(entry.kind) is str

    async def test_a_missing_file_is_not_found(self, new: New, tmp_path: Path) -> None:
        async with new() as client:
            for verb in (client.read_file, client.stat, client.list_files, client.remove, client.download_file):
                with pytest.raises(FileNotFound, match="nothing"):
                    await verb("nothing")
            with pytest.raises(FileNotFound):
                await client.download_file("nothing", tmp_path / "target")
            with pytest.raises(FileNotFound):
                await client.download_dir("nothing", tmp_path / "target")
        assert list(tmp_path.iterdir()) == []

    async def test_a_missing_file_of_this_machine_is_told_before_anything_is_sent(
        self, new: New, tmp_path: Path
    ) -> None:
        client = new()
        with pytest.raises(FileNotFound, match="on this machine"):
            await client.upload_file(tmp_path / "nothing")
        with pytest.raises(FileNotFound, match="on this machine"):
            await client.upload_dir(tmp_path / "nothing")
        with pytest.raises(IsDirectory, match="upload_dir"):
            await client.upload_file(tmp_path)
        assert client.session_id == ""
        await client.close()

    async def test_a_directory_is_not_read_as_a_file_nor_a_file_as_a_directory(self, new: New, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        async with new() as client:
            with pytest.raises(IsDirectory):
                await client.read_file("/workspace")
            with pytest.raises(NotADirectory, match="upload_file"):
                await client.upload_dir(tmp_path / "file")

    async def test_a_target_that_cannot_be_written_is_told(self, new: New, tmp_path: Path) -> None:
        async with new() as client:
            await client.write_file("f", "1")
            with pytest.raises(FileProblem, match="cannot be written"):
                await client.download_file("f", tmp_path / "no" / "such" / "f")

    async def test_a_path_that_cannot_be_is_refused(self, new: New) -> None:
        async with new() as client:
            for path in ("", "a\0b"):
                with pytest.raises(InvalidPath):
                    await client.write_file(path, "1")

    async def test_files_are_searched_by_name_and_content(self, new: New) -> None:
        async with new() as client:
            await client.write_file("a.py", "one\ntwo\n")
            await client.write_file("b.txt", "two\n")
            summaries: list[SearchSummary] = []
            found = [match async for match in client.search_files("two", on_summary=summaries.append)]
            assert [(match.path, match.line) for match in found] == [("/workspace/a.py", 2), ("/workspace/b.txt", 1)]
            assert (summaries[0].matches, summaries[0]["files_searched"]) == (2, 2)
            assert [match.path async for match in client.search_files(glob="*.py")] == ["/workspace/a.py"]
            with pytest.raises(InvalidRequest):
                await anext(client.search_files("("))

    async def test_changes_are_told_as_they_happen(self, new: New) -> None:
        async with new() as client, contextlib.aclosing(client.watch("/workspace")) as changes:
            assert (await anext(changes)).change == "watching"
            await client.write_file("new.txt", "1")
            while (change := await anext(changes)).path != "/workspace/new.txt":
                pass
            assert change["change"] in ("created", "moved_to")


class AsyncTerminalContract:
    pytestmark = pytest.mark.anyio

    async def test_a_terminal_shows_what_is_typed_and_how_it_ended(self, new: New) -> None:
        async with new() as client, client.terminal(rows=40, columns=100) as terminal:
            await terminal.write("stty size; echo $((6*7))\n")
            assert "40 100" in await terminal.read_until("42\r\n")
            await terminal.resize(50, 120)
            await terminal.write("stty size\n")
            await terminal.read_until("50 120")
            await terminal.write("exit 3\n")
            while await terminal.read(30):
                pass
            assert terminal.result is not None
            assert "ended with 3" in repr(terminal)

    async def test_a_terminal_can_be_come_back_to(self, new: New) -> None:
        async with new() as client:
            async with client.terminal(process_id="main") as terminal:
                await terminal.write("X=kept; echo fir''st\n")
                await terminal.read_until("first\r\n")
                offset = terminal.offset
            async with client.terminal(process_id="main", offset=offset) as terminal:
                await terminal.write("echo $X again\n")
                shown = await terminal.read_until("kept again")
                assert "first" not in shown

    async def test_a_terminal_has_the_directory_the_variables_and_the_user_it_was_given(self, new: New) -> None:
        async with new() as client:
            opened = partial(client.terminal, env={"COLOUR": "red"}, user="sandboxuser", cwd="/tmp", process_id="main")
            async with opened(rows=33, columns=99) as terminal:
                await terminal.write("echo $COLOUR $(whoami) $PWD $(stty size)\n")
                await terminal.read_until("red sandboxuser /tmp 33 99\r\n")
                offset = terminal.offset
            async with opened(offset=offset) as again:
                assert again.process_id == terminal.process_id
                await again.write("echo $((40 + 2))\n")
                await again.read_until("42\r\n")
            async with client.terminal("pwd; sleep 60", cwd="/usr") as other:
                await other.read_until("/usr\r\n")

    async def test_a_terminal_that_has_ended_still_shows_what_was_written(self, new: New) -> None:
        async with new() as client:
            ended = partial(client.terminal, "echo fir''st; exit 3", process_id="short", env={"A": "1"})
            for _ in range(2):
                async with ended() as terminal:
                    await terminal.read_until("first")
                    while await terminal.read(30):
                        pass
                    assert terminal.result is not None
                    assert terminal.result.exit_code == 3

    async def test_a_terminal_that_cannot_be_is_refused_in_words(self, new: New) -> None:
        async with new() as client:
            with pytest.raises(UnknownUser):
                async with client.terminal(user="nobody-knows"):
                    pass
            with pytest.raises(InvalidRequest):
                async with client.terminal(offset=-1):
                    pass
            with pytest.raises(InvalidRequest):
                async with client.terminal(rows=0):
                    pass
            await client.spawn("sleep 60", name="plain")
            for env in ({}, {"A": "1"}):
                plain = client.terminal(process_id="plain", env=env)
                with pytest.raises(InvalidRequest, match="has no terminal"):
                    async with plain:
                        pass
            assert [info.process_id for info in await client.processes()] == ["plain"]

    async def test_a_terminal_in_which_nothing_happens_times_out(self, new: New) -> None:
        async with new() as client, client.terminal("sleep 60") as terminal:
            for timeout in (0.1, 0):
                with pytest.raises(TimeoutError):
                    await terminal.read(timeout)
            with pytest.raises(TimeoutError, match="did not come"):
                await terminal.read_until("never", timeout=0.1)

    async def test_a_command_runs_as_the_sandboxs_user_without_network(self, new: New) -> None:
        async with new() as client:
            assert (await client.execute("whoami")).output == "sandboxuser\n"
            assert (await client.execute("python3 -c 'print(2+2)'", timeout=30)).output == "4\n"
            assert not (await client.execute("exec 3<>/dev/tcp/1.1.1.1/80")).ok
