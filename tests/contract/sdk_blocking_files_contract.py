"""What every SandboxClient does with files and terminals, over HTTP and on this machine alike."""

# Made from tests/contract/sdk_async_files_contract.py by scripts/generate_sync.py: edit that one.

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
from warren.sdk.blocking.client import SandboxClient
from warren.sdk.blocking.platform import run_parallel
from warren.sdk.results import SearchSummary

New = Callable[..., SandboxClient]
ODD_NAMES = ["two words", "-dash", "ünï", "100%", "a#b?c&d=e+f", "line\nbreak", "%41", "semi;colon"]


class FilesContract:
    def test_a_file_is_written_and_read(self, new: New) -> None:
        with new() as client:
            written = client.write_file("made/on/the/way.txt", "hällo", mode=0o600)
            assert (written.path, written.size, written.mode) == ("/workspace/made/on/the/way.txt", 6, "0600")
            assert client.read_file("made/on/the/way.txt") == "hällo".encode()
            assert client.read_text("/workspace/made/on/the/way.txt") == "hällo"

    def test_a_user_of_the_sandbox_reads_and_writes(self, new: New, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("1")
        with new() as client:
            user = (client.create_session()).user
            client.write_file("file", "1", user=user)
            assert client.read_text("file", user=user) == "1"
            with pytest.raises(UnknownUser):
                client.write_file("file", "2", user="nobody-knows")
            with pytest.raises(UnknownUser):
                client.upload_file(tmp_path / "file", "file", user="nobody-knows")
            with pytest.raises(UnknownUser):
                client.upload_dir(tmp_path, "there", user="nobody-knows")
            with pytest.raises(UnknownUser):
                client.read_file("file", user="nobody-knows")
            with pytest.raises(UnknownUser):
                client.download_file("file", tmp_path / "got", user="nobody-knows")
            with pytest.raises(UnknownUser):
                client.download_dir("/workspace", tmp_path / "got", user="nobody-knows")
            assert client.read_text("file") == "1"

    @pytest.mark.parametrize("name", ODD_NAMES)
    def test_odd_names_are_kept(self, new: New, name: str, tmp_path: Path) -> None:
        with new() as client:
            client.write_file(name, name)
            assert client.read_text(name) == name
            [entry] = client.list_files()
            assert (entry.name, entry["name"]) == (name, name)
            assert (client.download_file(name, tmp_path / "got")).read_text() == name

    def test_artifacts_outlive_the_session(self, new: New, tmp_path: Path) -> None:
        with new() as client:
            client.write_file("artifacts/end.txt", "at the end")
            result = client.execute("echo plot > plot.png", save_artifacts=["*.png"])
            assert result.saved is not None
            assert [one.name for one in result.saved.artifacts] == ["plot.png"]
            saved = client.artifacts.save("plot.png")
            assert (saved.artifacts[0], saved.left_out) == (result.saved.artifacts[0], [])
            assert (client.artifacts.save(["gone"])).left_out[0]["path"] == "gone"
            client.cleanup()
            first, last = client.artifacts.list()
            assert (first.name, last.name, last.mime_type) == ("end.txt", "plot.png", "image/png")
            assert client.artifacts.list(name="*.png", everywhere=True) == [last]
            assert client.artifacts.get(last.artifact_id) == last
            assert client.artifacts.read(first) == b"at the end"
            assert (client.artifacts.download(last, tmp_path)).read_text() == "plot\n"
            with new() as another:  # a client without a thread sees those of its own session
                another.execute("echo plot > other.png", save_artifacts=["*.png"])
                [other] = another.artifacts.list()
                assert other.name == "other.png"
                assert client.artifacts.list() == [first, last]
            for one in (first, last, other):
                client.artifacts.delete(one)
            assert client.artifacts.list() == []

    def test_a_file_goes_up_and_comes_down_with_its_progress(self, new: New, tmp_path: Path) -> None:
        data = bytes(range(256)) * 4096 * 5
        (tmp_path / "big").write_bytes(data)
        up: list[tuple[int, int | None]] = []
        down: list[tuple[int, int | None]] = []
        with new() as client:
            entry = client.upload_file(tmp_path / "big", "copy", progress=lambda done, size: up.append((done, size)))
            assert entry.size == len(data)
            target = client.download_file(
                "copy", tmp_path / "back", progress=lambda done, size: down.append((done, size))
            )
        assert target == tmp_path / "back"
        assert target.read_bytes() == data
        assert up[-1] == down[-1] == (len(data), len(data))
        assert len(up) > 1
        assert sorted(path.name for path in tmp_path.iterdir()) == ["back", "big"]

    def test_many_downloads_to_one_place_at_once_give_a_whole_file(self, new: New, tmp_path: Path) -> None:
        target = tmp_path / ("x" * 250)
        with new() as client:
            for letter in "abcd":
                client.write_file(letter, letter * 700_000)
            calls = [partial(client.download_file, letter, target) for letter in "abcd"]
            assert run_parallel(calls, 4) == [target] * 4
        data = target.read_text()
        assert data == data[0] * 700_000
        assert list(tmp_path.iterdir()) == [target]

    def test_a_pipe_is_uploaded_to_its_end(self, new: New) -> None:
        reading, writing = os.pipe()
        with os.fdopen(reading, "rb"), os.fdopen(writing, "wb") as end:
            end.write(b"from a pipe")
            end.close()
            with new() as client:
                assert (client.upload_file(f"/dev/fd/{reading}", "piped")).size == 11
                assert client.read_text("piped") == "from a pipe"

    def test_an_uploaded_file_is_called_as_it_was(self, new: New, tmp_path: Path) -> None:
        (tmp_path / "script.py").write_text("print(1)")
        with new() as client:
            assert (client.upload_file(str(tmp_path / "script.py"))).path == "/workspace/script.py"
            assert client.download_file("script.py", tmp_path) == tmp_path / "script.py"

    def test_an_empty_file_is_a_file(self, new: New, tmp_path: Path) -> None:
        (tmp_path / "empty").touch()
        with new() as client:
            client.upload_file(tmp_path / "empty")
            assert client.read_file("empty") == b""

    def test_a_part_of_a_file_is_read(self, new: New) -> None:
        with new() as client:
            client.write_file("f", "0123456789")
            assert client.read_file("f", offset=3, length=4) == b"3456"
            assert client.read_file("f", offset=8) == b"89"
            assert client.read_file("f", length=2) == b"01"
            assert client.read_file("f", offset=8, length=100) == b"89"
            assert client.read_file("f", offset=10) == b""
            assert client.read_file("f", offset=99, length=1) == b""
            assert client.read_file("f", length=0) == b""
            client.write_file("empty", "")
            assert client.read_file("empty", length=5) == b""
            with pytest.raises(FileNotFound):
                client.read_file("nothing", offset=1)
            with pytest.raises(InvalidRequest, match="cannot be read"):
                client.read_file("f", offset=-1)

    def test_a_file_is_written_from_what_gives_bytes_piece_by_piece(self, new: New, tmp_path: Path) -> None:
        (tmp_path / "here").write_bytes(bytes(range(256)) * 4000)
        with new() as client:
            with (tmp_path / "here").open("rb") as file:
                assert (client.write_file("from a file", file, mode=0o640)).mode == "0640"
            assert client.read_file("from a file") == (tmp_path / "here").read_bytes()
            written = client.write_file("counted", (b"%d\n" % number for number in range(1000)))
            assert written.size == sum(len(str(number)) + 1 for number in range(1000))
            assert (client.write_file("nothing", [])).size == 0
            client.write_file("listed", [b"a", b"", b"b"])
            assert client.read_file("listed") == b"ab"

    def test_pieces_that_fail_leave_the_old_file_and_the_caller_hears_why(self, new: New) -> None:
        def failing() -> Iterator[bytes]:
            yield b"half"
            raise ZeroDivisionError

        with new() as client:
            client.write_file("f", "old")
            with pytest.raises(ZeroDivisionError):
                client.write_file("f", failing())
            with pytest.raises(InvalidRequest, match="not bytes"):
                client.write_file("f", io.StringIO("text"))  # type: ignore[arg-type]
            with pytest.raises(InvalidRequest, match="the data is int"):
                client.write_file("f", 5)  # type: ignore[arg-type]
            assert client.read_text("f") == "old"

    def test_pieces_go_into_the_fresh_session_of_a_thread_whole(self, new: New) -> None:
        with new(thread_id="pieces") as client:
            client._backend.call("delete_session", client.session_id)
            client.write_file("f", iter([b"first", b"second"]))
            assert client.read_file("f") == b"firstsecond"
            client.cleanup()

    def test_a_link_comes_down_with_the_size_of_what_it_leads_to(self, new: New, tmp_path: Path) -> None:
        seen: list[tuple[int, int | None]] = []
        with new() as client:
            client.execute("printf 12345678901234567890 > target; ln -s target link")
            client.download_file("link", tmp_path / "got", progress=lambda *done: seen.append(done))
        assert seen[-1] == (20, 20)

    def test_a_tree_goes_up_and_comes_down(self, new: New, tmp_path: Path) -> None:
        tree = tmp_path / "tree"
        (tree / "sub").mkdir(parents=True)
        (tree / "a.txt").write_text("a")
        (tree / "sub" / "b.txt").write_text("b")
        (tree / "sub" / "run").write_text("#!/bin/sh\n")
        (tree / "sub" / "run").chmod(0o755)
        with new() as client:
            assert client.upload_dir(tree, "/workspace/there") == 4
            paths = {entry.path for entry in client.list_files("there", depth=9)}
            assert "/workspace/there/sub/b.txt" in paths
            assert (client.stat("there/sub/run")).mode == "0755"
            back = client.download_dir("there", tmp_path / "back")
        assert (back / "sub" / "b.txt").read_text() == "b"
        assert (back / "a.txt").read_text() == "a"

    def test_directories_are_made_moved_and_removed(self, new: New) -> None:
        with new() as client:
            assert (client.mkdir("one/two")).is_dir
            client.write_file("one/two/f", "1")
            assert (client.move("one/two/f", "one/g")).path == "/workspace/one/g"
            assert client.exists("one/g")
            assert not client.exists("one/two/f")
            client.remove("one/g")
            client.remove("one", recursive=True)
            assert client.list_files() == []

    def test_a_directory_may_exist_already_if_the_caller_says_so(self, new: New) -> None:
        with new() as client:
            client.mkdir("one")
            client.write_file("one/f", "1")
            with pytest.raises(FileExists):
                client.mkdir("one")
            assert (client.mkdir("one", exist_ok=True)).is_dir
            assert client.read_file("one/f") == b"1"
            with pytest.raises((FileExists, NotADirectory)):
                client.mkdir("one/f", exist_ok=True)

    def test_the_path_without_links_is_found(self, new: New) -> None:
        with new() as client:
            client.execute("mkdir -p a/b; ln -s a/b short; ln -s /workspace/short/../c far; echo 1 > a/c; ln -s l l")
            assert client.realpath("short") == "/workspace/a/b"
            assert client.realpath("/workspace/./far") == "/workspace/a/c"
            assert client.realpath("..") == "/"
            for path, error in (("nothing", FileNotFound), ("l", InvalidPath), ("a/c/d", NotADirectory)):
                with pytest.raises(error):
                    client.realpath(path)

    def test_trees_travel_as_tars(self, new: New, tmp_path: Path) -> None:
        with new() as client:
            client.execute("mkdir -p from/sub; echo 1 > from/sub/f; chmod 750 from/sub/f")
            tar = b"".join(list(client.read_archive("from")))
            assert client.write_archive(tar, "to") == 2
            (tmp_path / "tar").write_bytes(tar)
            with (tmp_path / "tar").open("rb") as file:
                assert client.write_archive(file, "again") == 2
            assert (client.stat("to/sub/f")).mode == "0750"
            assert client.read_file("again/sub/f") == b"1\n"

    def test_what_a_command_makes_is_seen_by_the_file_verbs(self, new: New) -> None:
        with new() as client:
            client.execute("mkdir -p d && echo made > d/f")
            entry = client.stat("d/f")
            assert (entry.kind, entry.size, entry.uid) == ("file", 5, 1000)
            assert type(entry.kind) is str

    def test_a_missing_file_is_not_found(self, new: New, tmp_path: Path) -> None:
        with new() as client:
            for verb in (client.read_file, client.stat, client.list_files, client.remove, client.download_file):
                with pytest.raises(FileNotFound, match="nothing"):
                    verb("nothing")
            with pytest.raises(FileNotFound):
                client.download_file("nothing", tmp_path / "target")
            with pytest.raises(FileNotFound):
                client.download_dir("nothing", tmp_path / "target")
        assert list(tmp_path.iterdir()) == []

    def test_a_missing_file_of_this_machine_is_told_before_anything_is_sent(self, new: New, tmp_path: Path) -> None:
        client = new()
        with pytest.raises(FileNotFound, match="on this machine"):
            client.upload_file(tmp_path / "nothing")
        with pytest.raises(FileNotFound, match="on this machine"):
            client.upload_dir(tmp_path / "nothing")
        with pytest.raises(IsDirectory, match="upload_dir"):
            client.upload_file(tmp_path)
        assert client.session_id == ""
        client.close()

    def test_a_directory_is_not_read_as_a_file_nor_a_file_as_a_directory(self, new: New, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with new() as client:
            with pytest.raises(IsDirectory):
                client.read_file("/workspace")
            with pytest.raises(NotADirectory, match="upload_file"):
                client.upload_dir(tmp_path / "file")

    def test_a_target_that_cannot_be_written_is_told(self, new: New, tmp_path: Path) -> None:
        with new() as client:
            client.write_file("f", "1")
            with pytest.raises(FileProblem, match="cannot be written"):
                client.download_file("f", tmp_path / "no" / "such" / "f")

    def test_a_path_that_cannot_be_is_refused(self, new: New) -> None:
        with new() as client:
            for path in ("", "a\0b"):
                with pytest.raises(InvalidPath):
                    client.write_file(path, "1")

    def test_files_are_searched_by_name_and_content(self, new: New) -> None:
        with new() as client:
            client.write_file("a.py", "one\ntwo\n")
            client.write_file("b.txt", "two\n")
            summaries: list[SearchSummary] = []
            found = list(client.search_files("two", on_summary=summaries.append))
            assert [(match.path, match.line) for match in found] == [("/workspace/a.py", 2), ("/workspace/b.txt", 1)]
            assert (summaries[0].matches, summaries[0]["files_searched"]) == (2, 2)
            assert [match.path for match in client.search_files(glob="*.py")] == ["/workspace/a.py"]
            with pytest.raises(InvalidRequest):
                next(client.search_files("("))

    def test_changes_are_told_as_they_happen(self, new: New) -> None:
        with new() as client, contextlib.closing(client.watch("/workspace")) as changes:
            assert (next(changes)).change == "watching"
            client.write_file("new.txt", "1")
            while (change := next(changes)).path != "/workspace/new.txt":
                pass
            assert change["change"] in ("created", "moved_to")


class TerminalContract:
    def test_a_terminal_shows_what_is_typed_and_how_it_ended(self, new: New) -> None:
        with new() as client, client.terminal(rows=40, columns=100) as terminal:
            terminal.write("stty size; echo $((6*7))\n")
            assert "40 100" in terminal.read_until("42\r\n")
            terminal.resize(50, 120)
            terminal.write("stty size\n")
            terminal.read_until("50 120")
            terminal.write("exit 3\n")
            while terminal.read(30):
                pass
            assert terminal.result is not None
            assert "ended with 3" in repr(terminal)

    def test_a_terminal_can_be_come_back_to(self, new: New) -> None:
        with new() as client:
            with client.terminal(process_id="main") as terminal:
                terminal.write("X=kept; echo fir''st\n")
                terminal.read_until("first\r\n")
                offset = terminal.offset
            with client.terminal(process_id="main", offset=offset) as terminal:
                terminal.write("echo $X again\n")
                shown = terminal.read_until("kept again")
                assert "first" not in shown

    def test_a_terminal_has_the_directory_the_variables_and_the_user_it_was_given(self, new: New) -> None:
        with new() as client:
            opened = partial(client.terminal, env={"COLOUR": "red"}, user="sandboxuser", cwd="/tmp", process_id="main")
            with opened(rows=33, columns=99) as terminal:
                terminal.write("echo $COLOUR $(whoami) $PWD $(stty size)\n")
                terminal.read_until("red sandboxuser /tmp 33 99\r\n")
                offset = terminal.offset
            with opened(offset=offset) as again:
                assert again.process_id == terminal.process_id
                again.write("echo $((40 + 2))\n")
                again.read_until("42\r\n")
            with client.terminal("pwd; sleep 60", cwd="/usr") as other:
                other.read_until("/usr\r\n")

    def test_a_terminal_that_has_ended_still_shows_what_was_written(self, new: New) -> None:
        with new() as client:
            ended = partial(client.terminal, "echo fir''st; exit 3", process_id="short", env={"A": "1"})
            for _ in range(2):
                with ended() as terminal:
                    terminal.read_until("first")
                    while terminal.read(30):
                        pass
                    assert terminal.result is not None
                    assert terminal.result.exit_code == 3

    def test_a_terminal_that_cannot_be_is_refused_in_words(self, new: New) -> None:
        with new() as client:
            with pytest.raises(UnknownUser), client.terminal(user="nobody-knows"):
                pass
            with pytest.raises(InvalidRequest), client.terminal(offset=-1):
                pass
            with pytest.raises(InvalidRequest), client.terminal(rows=0):
                pass
            client.spawn("sleep 60", name="plain")
            for env in ({}, {"A": "1"}):
                plain = client.terminal(process_id="plain", env=env)
                with pytest.raises(InvalidRequest, match="has no terminal"), plain:
                    pass
            assert [info.process_id for info in client.processes()] == ["plain"]

    def test_a_terminal_in_which_nothing_happens_times_out(self, new: New) -> None:
        with new() as client, client.terminal("sleep 60") as terminal:
            for timeout in (0.1, 0):
                with pytest.raises(TimeoutError):
                    terminal.read(timeout)
            with pytest.raises(TimeoutError, match="did not come"):
                terminal.read_until("never", timeout=0.1)

    def test_a_command_runs_as_the_sandboxs_user_without_network(self, new: New) -> None:
        with new() as client:
            assert (client.execute("whoami")).output == "sandboxuser\n"
            assert (client.execute("python3 -c 'print(2+2)'", timeout=30)).output == "4\n"
            assert not (client.execute("exec 3<>/dev/tcp/1.1.1.1/80")).ok
