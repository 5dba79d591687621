"""`warren cp`: what goes where, in both directions, as a user sees it."""

import io
import os
import tarfile
from pathlib import Path

import pytest
from machine.cli_terminal import Terminal
from machine.remote_cli import RemoteCli


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "project/src").mkdir(parents=True)
    (tmp_path / "project/src/main.py").write_text("print(42)\n")
    (tmp_path / "tool").write_text("#!/bin/sh\necho runs\n")
    (tmp_path / "tool").chmod(0o755)
    return tmp_path


def test_a_file_goes_there_and_back_with_its_rights(cli: RemoteCli, session: str, tree: Path) -> None:
    assert cli.say("cp", "tool", f"{session}:", cwd=str(tree)) == ""
    assert cli.say("exec", session, "--", "./tool") == "runs\n"
    cli.say("cp", f"{session[:12]}:tool", "back", cwd=str(tree))
    assert (tree / "back").read_bytes() == (tree / "tool").read_bytes()
    assert os.access(tree / "back", os.X_OK)


@pytest.mark.parametrize(
    ("target", "path"),
    [
        ("", "/workspace/tool"),
        ("renamed", "/workspace/renamed"),
        ("new/dir/", "/workspace/new/dir/tool"),
        ("/tmp", "/tmp/tool"),
    ],
)
def test_where_a_file_goes(cli: RemoteCli, session: str, tree: Path, target: str, path: str) -> None:
    cli.say("cp", str(tree / "tool"), f"{session}:{target}")
    assert cli.say("exec", session, "--", "stat", "-c", "%U", path) == "sandboxuser\n"


def test_directories_go_there_and_back(cli: RemoteCli, session: str, tree: Path) -> None:
    for target in ("", "copy", "copy"):
        cli.say("cp", "-r", "project", f"{session}:{target}", cwd=str(tree))
    found = cli.say("exec", session, "--", "find", ".", "-name", "*.py").split()
    assert sorted(found) == ["./copy/project/src/main.py", "./copy/src/main.py", "./project/src/main.py"]
    for _ in range(2):
        cli.say("cp", "-r", f"{session}:project", "back", cwd=str(tree))
    assert (tree / "back/src/main.py").read_text() == "print(42)\n"
    assert (tree / "back/project/src/main.py").exists()


def test_stdin_and_stdout_are_a_dash(cli: RemoteCli, session: str) -> None:
    sent = os.urandom(3 * 1024 * 1024)
    assert cli.run("cp", "-", f"{session}:data.bin", stdin=sent).returncode == 0
    assert cli.run("cp", f"{session}:data.bin", "-").stdout == sent


def test_a_tar_goes_through_a_pipe(cli: RemoteCli, session: str, tree: Path) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        tar.add(tree / "project", "project")
    cli.say("cp", "-r", "-", f"{session}:in", stdin=packed.getvalue())
    done = cli.run("cp", "-r", f"{session}:in", "-")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as tar:
        assert "project/src/main.py" in {name.removeprefix("./") for name in tar.getnames()}


def test_a_thread_stands_in_for_the_session(cli: RemoteCli, tree: Path) -> None:
    cli.say("cp", "--thread", "copies", str(tree / "tool"), ":")
    assert cli.run("cp", "--thread", "copies", ":tool", "-").stdout == (tree / "tool").read_bytes()
    cli.say("kill", "--thread", "copies")


def test_one_document_for_programs(cli: RemoteCli, session: str, tree: Path) -> None:
    found = cli.document("cp", str(tree / "tool"), f"{session}:x")
    assert found == {"source": str(tree / "tool"), "target": "/workspace/x", "bytes": 20}


def test_names_with_blanks_colons_and_dashes(cli: RemoteCli, session: str, tmp_path: Path) -> None:
    (tmp_path / "a b:c").write_text("1")
    (tmp_path / "-x").write_text("2")
    cli.say("cp", "./a b:c", f"{session}:é e", cwd=str(tmp_path))
    cli.say("cp", "--", "-x", f"{session}:-y", cwd=str(tmp_path))
    assert cli.say("exec", session, "--", "cat", "--", "é e", "-y") == "12"


def test_mistakes(cli: RemoteCli, session: str, tree: Path) -> None:
    for source, target, message in (
        ("project", f"{session}:", b"give -r"),
        ("nope", f"{session}:", b"no file nope on this machine"),
        (f"{session}:nope", ".", b"nope"),
        (f"{session}:/workspace", ".", b"give -r"),
        ("tool", f"{session}:/etc/tool", b"read-only file system"),
        (f"{session}:/root/x", ".", b"ermission denied"),
        (f"{session}:/etc/passwd", "no/such/place", b"no/such"),
    ):
        done = cli.run("cp", source, target, cwd=str(tree))
        assert (done.returncode, message in done.stderr) == (125, True), done
    assert cli.run("cp", "-", f"{session}:", stdin=b"x").returncode == 2
    assert cli.run("cp", "tool", ":x", cwd=str(tree)).returncode == 2


def test_a_terminal_shows_progress(cli: RemoteCli, session: str, tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(bytes(60 * 1024 * 1024))
    terminal = Terminal(cli.argv("cp", str(tmp_path / "big"), f"{session}:"), cli.environ, rows=24, columns=80)
    try:
        terminal.expect("MiB")
        assert terminal.process.wait(60) == 0
    finally:
        terminal.close()
