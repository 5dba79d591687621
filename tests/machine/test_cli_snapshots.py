"""`warren snapshot` and `warren fork`: the real command against a real server."""

import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from machine.remote_cli import RemoteCli
from server_process import running_server
from this_run import new_state_dir


@pytest.fixture(scope="module")
def cli() -> Iterator[RemoteCli]:
    path = new_state_dir()
    flags = ("--on-stop", "destroy")
    with running_server(path, *flags, provider="fake", WARREN_MIN_FREE_MEMORY_MB="1") as server:
        yield RemoteCli(server.url, WARREN_STATE_DIR=str(path), WARREN_PROVIDER="fake")
    shutil.rmtree(path)


def test_a_snapshot_is_made_shown_started_from_and_removed(cli: RemoteCli) -> None:
    session = cli.say("create", "--thread", "cli").strip()
    cli.say("exec", session, "--", "sh", "-c", "echo one > a.txt")
    where = ("--name", "ready", "--expires-in", "2d", "--metadata", "of=me")
    made = cli.say("snapshot", "create", "--thread", "cli", *where).strip()
    assert made.startswith("snap_")
    shown = cli.document("snapshot", "show", "ready")
    assert (shown["snapshot_id"], shown["session_id"], shown["metadata"]) == (made, session, {"of": "me"})
    assert "environment" in cli.say("snapshot", "show", made)
    assert cli.say("snapshot", "list").splitlines()[1].split()[:2] == [made, "ready"]
    assert cli.say("snapshot", "list", "-q") == f"{made}\n"
    other = cli.say("create", "--snapshot", "ready").strip()
    assert cli.say("exec", other, "--", "cat", "a.txt") == "one\n"
    assert cli.say("snapshot", "rm", "ready") == "removed ready\n"
    done = cli.run("snapshot", "rm", "ready")
    assert (done.returncode, b"there is no snapshot 'ready'" in done.stderr) == (125, True)
    assert cli.say("snapshot", "list", "-q") == ""


def test_one_is_copied_here_and_back_and_a_tar_becomes_one(cli: RemoteCli, tmp_path: Path) -> None:
    session = cli.say("create").strip()
    cli.say("exec", session, "--", "sh", "-c", "echo two > b.txt")
    cli.say("snapshot", "create", session, "--name", "moved")
    assert cli.say("snapshot", "get", "moved", cwd=str(tmp_path)) == "moved.warren-snapshot\n"
    file = tmp_path / "moved.warren-snapshot"
    assert cli.run("snapshot", "get", "moved", "-").stdout == file.read_bytes()
    cli.say("snapshot", "rm", "moved")
    back = cli.document("snapshot", "put", str(file))
    assert (back["name"], back["session_id"]) == ("moved", session)
    with tarfile.open(tmp_path / "t.tar.gz", "w:gz") as tar:
        tar.add(file, "deep/file")
    packed = cli.say("snapshot", "put", str(tmp_path / "t.tar.gz"), "--name", "packed", "-E", "base").strip()
    other = cli.say("create", "--snapshot", packed).strip()
    assert cli.run("cp", f"{other}:deep/file", "-").stdout == file.read_bytes()
    (tmp_path / "bad").write_bytes(file.read_bytes()[:-1])
    done = cli.run("snapshot", "put", str(tmp_path / "bad"))
    assert (done.returncode, b"not whole" in done.stderr) == (125, True)
    cli.say("snapshot", "rm", "moved", "packed")


def test_forks_are_printed_and_what_was_not_made_is_said(cli: RemoteCli) -> None:
    session = cli.say("create", "--thread", "source").strip()
    cli.say("exec", session, "--", "sh", "-c", "echo three > c.txt")
    made = cli.say("fork", "--thread", "source", "-n", "2", "--metadata", "way=x").split()
    assert len(made) == 2
    for one in made:
        assert cli.say("exec", one, "--", "cat", "c.txt") == "three\n"
        [shown] = cli.document("inspect", one)
        assert shown["forked_from"] == session
    done = cli.run("fork", session, "--new-thread", "fresh", "--new-thread", "source")
    assert (done.returncode, len(done.stdout.split())) == (1, 1)
    assert b"not made: the thread 'source' has a session" in done.stderr
    assert cli.run("fork").returncode == 2


def test_run_names_a_snapshot_that_is_not_there(cli: RemoteCli) -> None:
    done = cli.run("run", "--snapshot", "nothing", "--", "true")
    assert (done.returncode, b"there is no snapshot 'nothing'" in done.stderr) == (125, True)
