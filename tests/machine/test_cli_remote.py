"""The command line on a server: the real `warren` as a process of its own, against a real server."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
import warm_parent
from e2e.hosts import Hosts
from machine.remote_cli import RemoteCli
from server_process import ServerProcess, free_port, running_server
from this_run import patience

_PATIENCE_S = patience(20.0)


# -- sessions


def test_create_prints_an_id_that_ps_shows_and_kill_ends(cli: RemoteCli) -> None:
    session_id = cli.say("create", "--metadata", "user=u-7", "--idle-timeout", "10m", "--max-lifetime", "1h").strip()
    (shown,) = [each for each in cli.document("ps")["sessions"] if each["session_id"] == session_id]
    assert (shown["metadata"], shown["idle_timeout_s"], shown["max_lifetime_s"]) == ({"user": "u-7"}, 600, 3600)
    assert cli.say("kill", session_id) == f"ended {session_id}\n"
    assert session_id not in cli.say("ps", "-q").split()
    assert session_id in cli.say("ps", "-a", "-q").split()
    row = next(line for line in cli.say("ps", "-a").splitlines() if line.startswith(session_id[:16]))
    assert "ended (deleted)" in row


def test_limits_make_a_sandbox_anew(cli: RemoteCli) -> None:
    made = cli.document("create", "--memory", "256", "--cpus", "1", "--disk", "200", "--require", "seccomp")
    assert made["pooled"] is False
    assert cli.say("kill", made["session_id"])


def test_a_thread_has_one_session(cli: RemoteCli) -> None:
    first = cli.document("create", "--thread", "conv-1")
    assert cli.document("create", "--thread", "conv-1")["session_id"] == first["session_id"]
    assert cli.say("exec", "--thread", "conv-1", "--", "hostname") == "sandbox\n"
    refused = cli.run("create", "--thread", "conv-1", "-m", "300")
    assert refused.returncode == 125
    assert b"300 was asked for" in refused.stderr
    assert b"--on-mismatch" in refused.stderr
    kept = cli.run("create", "--thread", "conv-1", "-m", "300", "--on-mismatch", "keep")
    assert (kept.stdout.decode().strip(), b"300 was asked for" in kept.stderr) == (first["session_id"], True)
    other = json.loads(
        cli.run("create", "--thread", "conv-1", "-m", "300", "--on-mismatch", "replace", "--json").stdout
    )
    assert (other["limits"]["memory_mb"], other["previous"]["reason"]) == (300, "replaced")
    cli.say("kill", "--thread", "conv-1")
    again = cli.run("create", "--thread", "conv-1")
    assert b"this is a fresh sandbox" in again.stderr
    assert again.stdout.decode().strip() not in (first["session_id"], other["session_id"])
    cli.say("kill", "--thread", "conv-1")


def test_a_variable_for_env_is_told_from_an_environment(cli: RemoteCli) -> None:
    done = cli.run("create", "--env", "A=b")
    assert (done.returncode, b"-e A=b" in done.stderr) == (2, True)
    for flag in ("--env", "--environment", "-E"):
        assert b"there is no environment" in cli.run("create", flag, "nope").stderr


def test_a_lost_thread_is_shown_as_such_and_goes_on_where_the_user_wants_it(
    cli: RemoteCli, server: ServerProcess
) -> None:
    lost = cli.document("create", "--thread", "conv-2")
    Hosts(server.state_dir).lose(lost["sandbox_id"])
    deadline = time.monotonic() + _PATIENCE_S
    while cli.document("ps")["sessions"][0]["state"] != "lost":
        assert time.monotonic() < deadline
    row = next(line for line in cli.say("ps").splitlines() if line.startswith(lost["session_id"][:16]))
    assert "lost" in row.split()
    assert "(lost)" not in row
    refused = cli.run("exec", "--thread", "conv-2", "--", "true")
    assert (refused.returncode, b"--replace-lost" in refused.stderr) == (125, True)
    done = cli.run("exec", "--thread", "conv-2", "--replace-lost", "--", "echo", "again")
    assert (done.returncode, done.stdout, b"fresh sandbox" in done.stderr) == (0, b"again\n", True)
    assert cli.run("exec", lost["session_id"], "--replace-lost", "--", "true").returncode == 2
    assert cli.document("create", "--thread", "conv-2", "--replace-lost")["created"] is False
    cli.say("kill", "--thread", "conv-2")


def test_the_beginning_of_an_id_is_enough_as_long_as_it_means_one(cli: RemoteCli, session: str) -> None:
    other = cli.say("create").strip()
    assert cli.say("exec", session[:12], "--", "echo", "a") == "a\n"
    assert cli.say("exec", session[4:12], "--", "echo", "b") == "b\n"
    done = cli.run("exec", "ses_", "--", "true")
    assert (done.returncode, b"sessions begin with" in done.stderr) == (125, True)
    cli.say("kill", other)


def test_several_sessions_at_once_and_one_that_is_not_there_stops_nothing(cli: RemoteCli) -> None:
    ids = [cli.say("create", "--memory", "256m", "-e", "A=b").strip() for _ in range(3)]
    assert [each["session_id"] for each in cli.document("inspect", *ids)] == ids
    assert cli.document("inspect", ids[0])[0]["limits"]["memory_mb"] == 256
    assert cli.say("exec", ids[0], "--", "sh", "-c", "echo $A") == "b\n"
    cli.say("exec", "-d", "--name", "web", ids[0], "--", "sleep", "60")
    assert cli.document("kill-all", ids[0])["killed"] >= 1
    done = cli.run("rm", "-f", ids[0], "ses_" + "0" * 32, *ids[1:])
    assert (done.returncode, done.stdout.decode().split()[1::2]) == (125, ids)
    assert b"there is no session" in done.stderr
    assert not set(ids) & set(cli.say("ls", "-q").split())


def test_sessions_are_paused_and_resumed_several_at_once(cli: RemoteCli) -> None:
    ids = [cli.say("create", "--on-idle", "pause", "--max-paused", "1d").strip() for _ in range(2)]
    assert cli.say("pause", *ids) == "".join(f"{each} paused\n" for each in ids)
    assert [line.split().count("paused") for line in cli.say("ps").splitlines()[1:3]] == [1, 1]
    assert cli.say("exec", ids[0], "--", "echo", "woken") == "woken\n"
    assert [each["state"] for each in cli.document("pause", "--no-auto-resume", "--max-paused", "1h", *ids)] == [
        "paused"
    ] * 2
    refused = cli.run("exec", ids[0], "--", "true")
    assert (refused.returncode, f"warren resume {ids[0]}".encode() in refused.stderr) == (125, True)
    assert cli.say("resume", *ids) == "".join(f"{each} running\n" for each in ids)
    cli.say("kill", *ids)


def test_ps_shows_what_a_session_is_made_of_and_how_long_it_may_idle(cli: RemoteCli) -> None:
    session = cli.say("create", "-m", "0.25g", "--cpus", "1", "--disk", "200", "--idle-timeout", "10m").strip()
    head, *rows = cli.say("ps").splitlines()
    assert all(name in head for name in ("IMAGE", "PROVIDER", "WORKER", "LIMITS", "IDLE LEFT"))
    (row,) = [row for row in rows if row.startswith(session[:16])]
    assert all(f" {part} " in row for part in ("base", "oci", "256M/1/200M", "10 min"))
    cli.say("kill", session)


def test_bash_completes_environments_of_the_server(cli: RemoteCli) -> None:
    for words in ("warren create -E bas", "warren environments show bas"):
        asked = {"_WARREN_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": "3"}
        done = warm_parent.run(cli.argv(), env={**cli.environ, **asked}, capture_output=True, text=True, timeout=60)
        assert done.stdout == "plain,base\n"


def test_artifacts_of_one_session_are_listed_by_its_id_or_the_beginning_of_it(cli: RemoteCli) -> None:
    one, other = (cli.say("create").strip() for _ in range(2))
    for session in (one, other):
        cli.say("exec", session, "--", "sh", "-c", "echo $$ > result.txt")
        cli.say("artifacts", "save", session, "result.txt")
    cli.say("kill", one)
    [artifact] = cli.document("artifacts", "list", one)["artifacts"]
    assert artifact["session_id"] == one
    for name in (one, one[:16], one.removeprefix("ses_")[:12]):
        assert cli.say("artifacts", "list", name, "-q") == f"{artifact['artifact_id']}\n"
    assert len(cli.say("artifacts", "list", "--name", "result*", "-q").split()) >= 2
    cli.say("artifacts", "rm", artifact["artifact_id"])
    assert cli.say("artifacts", "list", one, "-q") == ""
    cli.say("kill", other)


def test_network_shows_changes_and_explains(cli: RemoteCli) -> None:
    session = cli.say("create", "--allow", "one.example", "--allow", "*.two.example:443").strip()
    assert cli.document("network", session)["allow"] == ["one.example", "*.two.example:443"]
    cli.run("exec", session, "--", "getent", "hosts", "three.example")
    cli.run("exec", session, "--", "bash", "-c", "exec 3<> /dev/tcp/93.184.216.34/80; read -u 3")
    shown = cli.say("network", session)
    assert "*.two.example:443" in shown
    assert "--add --allow three.example" in shown
    assert "--add --allow 93.184.216.34:80" in shown
    added = cli.document("network", session, "--add", "--allow", "three.example")
    assert added["allow"] == ["one.example", "*.two.example:443", "three.example"]
    assert cli.document("network", session, "--internet", "--deny", "*.ads.example")["internet"] is True
    assert cli.say("network", session, "--none").startswith("RULE")
    assert cli.document("network", session)["allow"] == []
    for wrong in (["--none", "--internet"], ["--add"], ["--add", "--none"]):
        assert cli.run("network", session, *wrong).returncode == 2
    wrong_rule = cli.run("network", session, "--allow", "*")
    assert (wrong_rule.returncode, b"would allow everything" in wrong_rule.stderr) == (125, True)
    cli.say("kill", session)
    refused = cli.run("create", "--internet", "--require", "no_network")
    assert (refused.returncode, b"no_network" in refused.stderr) == (125, True)


# -- exec


def test_streams_are_kept_apart_and_the_exit_code_is_passed_on(cli: RemoteCli, session: str) -> None:
    done = cli.run("exec", session, "--", "sh", "-c", "echo out; echo err >&2; exit 7")
    assert (done.returncode, done.stdout, done.stderr) == (7, b"out\n", b"err\n")


@pytest.mark.parametrize(("line", "code"), [("kill -9 $$", 137), ("exit 255", 255), ("nope", 127)])
def test_exit_codes(cli: RemoteCli, session: str, line: str, code: int) -> None:
    assert cli.run("exec", session, "--", "sh", "-c", line).returncode == code


def test_every_byte_goes_in_and_comes_out(cli: RemoteCli, session: str) -> None:
    sent = os.urandom(4 * 1024 * 1024)
    done = cli.run("exec", "-i", session, "--", "cat", stdin=sent)
    assert (done.returncode, done.stdout == sent) == (0, True)


def test_stdin_is_not_taken_without_being_asked(cli: RemoteCli, session: str) -> None:
    assert cli.say("exec", session, "--", "cat", stdin=b"not for it") == ""


def test_who_where_and_with_what(cli: RemoteCli, session: str) -> None:
    said = cli.say("exec", session, "--cwd", "/tmp", "-e", "A=b c", "--", "sh", "-c", 'echo "$(id -un) $PWD $A"')
    assert said == "sandboxuser /tmp b c\n"


def test_without_dashes_all_after_the_session_is_the_command(cli: RemoteCli, session: str) -> None:
    assert cli.say("exec", session, "echo", "-i", "-t", "--json") == "-i -t --json\n"


def test_a_time_out_is_124_and_ends_all_of_it(cli: RemoteCli, session: str) -> None:
    done = cli.run("exec", session, "--timeout", "0.5", "--", "sh", "-c", "setsid sleep 600 & sleep 601")
    assert done.returncode == 124
    assert b"ended after 0.5 s" in done.stderr
    assert no_sleepers(cli, session)


def test_one_document_for_programs(cli: RemoteCli, session: str) -> None:
    done = cli.run("exec", "--json", session, "--", "sh", "-c", "echo out; echo err >&2; exit 3")
    found = json.loads(done.stdout)
    assert done.returncode == found["exit_code"] == 3
    assert (found["stdout"], found["stderr"], found["reason"]) == ("out\n", "err\n", "exited")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_command(cli: RemoteCli, session: str, number: int) -> None:
    line = "setsid sleep 600 & echo ready; sleep 601"
    with cli.start("exec", session, "--", "sh", "-c", line, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(number)
        assert process.wait(_PATIENCE_S) == 128 + number
    assert no_sleepers(cli, session)


def test_a_reader_that_goes_away_ends_the_command_quietly(cli: RemoteCli, session: str) -> None:
    argv = ("exec", session, "--", "sh", "-c", "sleep 600 & yes")
    with cli.start(*argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(1000)
        process.stdout.close()
        assert process.wait(_PATIENCE_S) == 128 + signal.SIGPIPE
        assert process.stderr.read() == b""
    assert no_sleepers(cli, session)


def no_sleepers(cli: RemoteCli, session: str) -> bool:
    found = cli.run("exec", session, "--", "sh", "-c", "grep -l sleep /proc/[0-9]*/comm")
    return found.stdout == b""


# -- background commands


def test_a_background_command_is_started_followed_and_killed(cli: RemoteCli, session: str) -> None:
    line = "for i in 1 2 3; do echo $i; sleep 0.1; done; sleep 600 & sleep 601"
    assert cli.say("exec", "-d", "--name", "web", session, "--", "sh", "-c", line) == "web\n"
    deadline = time.monotonic() + _PATIENCE_S
    while cli.say("logs", session, "web") != "1\n2\n3\n" and time.monotonic() < deadline:
        time.sleep(0.1)
    assert cli.say("logs", "--offset", "2", session, "web") == "2\n3\n"
    assert cli.say("logs", "--tail", "1", session, "web") == "3\n"
    assert cli.say("logs", "-n", "9", session, "web") == "1\n2\n3\n"
    assert cli.say("logs", "--tail", "0", session, "web") == ""
    assert cli.document("logs", session, "web")["running"] is True
    assert "running" in cli.say("logs", session)
    assert cli.document("kill", session, "web")["killed"] == 3
    assert cli.say("kill", session, "web").startswith("web: ")
    assert cli.document("logs", session, "web")["running"] is False


def test_the_log_of_a_session_is_printed_for_people_and_programs_and_removed(cli: RemoteCli) -> None:
    one = cli.say("create", "--logs", "output").strip()
    cli.run("exec", one, "--", "sh", "-c", "printf 'a\\033[31mb\\n'; echo err >&2")
    shown = cli.say("logs", one)
    assert "\033" not in shown
    assert "  | a?[31mb\n" in shown
    assert "  ! err\n" in shown
    assert ["started:" in line or "with 0 (exited)" in line for line in shown.splitlines() if " command " in line] == [
        True,
        True,
    ]
    assert "  | " not in cli.say("logs", "--no-output", one)
    assert len(cli.say("logs", "-n", "1", one).splitlines()) == 1
    cli.say("kill", one)
    found = cli.document("logs", one)
    assert (found["level"], found["entries"][0]["event"]) == ("output", "started")
    followed = [json.loads(line) for line in cli.say("logs", "-f", "--json", one).splitlines()]
    assert followed == found["entries"]
    assert cli.say("logs", "rm", one) == f"removed the log of {one}\n"
    assert cli.document("logs", one)["entries"] == []


def test_files_are_searched(cli: RemoteCli, session: str) -> None:
    cli.say("exec", session, "--", "sh", "-c", "mkdir s; echo two > s/a.py; echo two > s/b.txt")
    assert cli.say("search", session, "-e", "t[w]o", "-g", "*.py") == "/workspace/s/a.py:1:two\n"
    assert cli.say("search", session, "-g", "s/*") == "/workspace/s/a.py\n/workspace/s/b.txt\n"
    found = json.loads(cli.run("search", session, "--json", "-e", "two", "-g", "*.txt").stdout)
    assert [(one["path"], one["line"]) for one in found["matches"]] == [("/workspace/s/b.txt", 1)]
    assert found["summary"]["files_searched"] == 1
    cut = cli.run("search", session, "-e", "two", "-m", "1")
    assert (cut.returncode, b"max_matches ended the search" in cut.stderr) == (0, True)
    assert cli.run("search", session, "-e", "nowhere").returncode == 1
    assert cli.run("search", session).returncode == 2


def test_logs_follow_to_the_end_with_the_streams_apart(cli: RemoteCli, session: str) -> None:
    line = "for i in 1 2 3; do echo $i; echo $i >&2; sleep 0.3; done"
    process_id = cli.say("exec", "-d", session, "--", "sh", "-c", line).strip()
    done = cli.run("logs", "-f", "--tail", "100", session, process_id)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"1\n2\n3\n", b"1\n2\n3\n")


def test_what_was_not_kept_is_said(cli: RemoteCli, session: str) -> None:
    process_id = cli.say("exec", "-d", session, "--", "head", "-c", "30000000", "/dev/zero").strip()
    deadline = time.monotonic() + _PATIENCE_S
    while cli.document("logs", session)["processes"][0]["running"] and time.monotonic() < deadline:
        time.sleep(0.1)
    done = cli.run("logs", session, process_id)
    assert done.returncode == 0
    assert b"bytes were not kept" in done.stderr
    assert 0 < len(done.stdout) < 30_000_000


def test_a_reader_of_logs_may_go_away(cli: RemoteCli, session: str) -> None:
    process_id = cli.say("exec", "-d", session, "--", "sh", "-c", "seq 100000; sleep 600").strip()
    line = 'set -o pipefail; "$@" | head -1'
    argv = ["bash", "-c", line, "bash", *cli.argv("logs", "-f", session, process_id)]
    done = warm_parent.run(argv, env=cli.environ, capture_output=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (128 + signal.SIGPIPE, b"1\n", b"")
    cli.say("kill", session, process_id)


# -- the server


def test_stats_show_sessions_pools_and_the_machine(cli: RemoteCli, session: str) -> None:
    said = cli.say("stats")
    assert "running" in said.splitlines()[0]
    assert "HIT RATE" in said
    assert cli.document("stats")["workers"]["local"]["pools"]["base"]["target"] >= 1


def test_stats_of_a_session_show_what_it_uses(cli: RemoteCli, session: str) -> None:
    said = cli.say("stats", session)
    assert said.startswith(f"session {session} at ")
    for word in ("cpu", "memory", "disk", "processes", "1024.0 MiB"):
        assert word in said
    assert cli.document("stats", session)["limits"]["processes"] >= 8
    assert b"there is no session" in cli.run("stats", "ses_ffff").stderr


def test_stats_of_a_session_are_watched_in_lines_and_in_place_on_a_terminal(cli: RemoteCli, session: str) -> None:
    with warm_parent.Popen(cli.argv("stats", session, "--watch"), env=cli.environ, stdout=subprocess.PIPE) as watching:
        assert watching.stdout is not None
        lines = [watching.stdout.readline() for _ in range(2)]
        watching.send_signal(signal.SIGINT)
    assert all(line.startswith(b"at=20") and b" memory_bytes=" in line for line in lines), lines
    with warm_parent.Popen(
        cli.argv("stats", session, "--watch", "--json"), env=cli.environ, stdout=subprocess.PIPE
    ) as watching:
        assert watching.stdout is not None
        assert json.loads(watching.stdout.readline())["session_id"] == session
        watching.send_signal(signal.SIGINT)
    master, terminal = os.openpty()
    try:
        with warm_parent.Popen(cli.argv("stats", session, "--watch"), env=cli.environ, stdout=terminal) as watching:
            seen = b""
            while seen.count(b"\033[H\033[2J") < 2:
                seen += os.read(master, 4096)
            watching.send_signal(signal.SIGINT)
    finally:
        os.close(master)
        os.close(terminal)
    assert b"memory" in seen
    assert b"SHARE" in seen


def test_self_test_finds_a_good_server_good(cli: RemoteCli) -> None:
    said = cli.say("self-test", "--url", cli.url)
    assert "FAILED" not in said
    assert "10 ok, 0 failed" in said
    assert cli.document("self-test")["ok"] is True
    assert cli.document("ps")["sessions"] == []


def test_self_test_says_what_failed() -> None:
    done = RemoteCli(f"http://127.0.0.1:{free_port()}").run("self-test")
    assert done.returncode == 1
    assert done.stdout.startswith(b"FAILED the server answers")
    assert b"is it running?" in done.stdout


# -- mistakes


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["exec", "--", "true"], 2, "which session?"),
        (["exec", "ses_1"], 2, "which command?"),
        (["exec", "ses_1", "git", "checkout", "--", "file"], 2, "put `--` right before the command"),
        (["exec", "-d", "-i", "ses_1", "--", "true"], 2, "nobody is there"),
        (["exec", "-t", "ses_1", "--", "true"], 2, "needs a terminal"),
        (["exec", "-e", "A", "ses_1", "--", "true"], 2, "expected K=V"),
        (["exec", "--nope", "ses_1", "--", "true"], 2, "No such option"),
        (["exec", "ses_nope", "--", "true"], 125, "there is no session 'ses_nope'"),
        (["exec", f"ses_{32 * '0'}", "--", "true"], 125, "session"),
        (["logs", "ses_nope", "p"], 125, "`warren ps` shows"),
        (["logs", "--thread", "nobody", "p"], 125, "has no session"),
        (["kill", "--thread", "nobody"], 125, "has no session"),
        (["kill"], 2, "which session?"),
        (["cp", "a", "b"], 2, "one side must be SESSION:PATH"),
        (["create", "--env", "nope"], 125, "nope"),
        (["create", "--idle-timeout", "soon"], 2, "is not a duration"),
        (["create", "--metadata", "user"], 2, "expected K=V"),
        (["create", "--label", "gpu"], 2, "expected K=V"),
        (["create", "--label", "gpu=1"], 125, "there is no worker with the label gpu=1"),
        (["create", "--memory", "3"], 125, "memory_mb is 3"),
        (["ps", "--url", "ftp://x"], 125, "is not the URL of a server"),
        (["ps", "--api-key", "secret"], 2, "No such option"),
        (["completion", "tcsh"], 2, "tcsh"),
    ],
)
def test_a_mistake_is_one_clear_sentence(cli: RemoteCli, arguments: list[str], code: int, message: str) -> None:
    done = cli.run(*arguments)
    assert message in done.stderr.decode()
    assert (done.returncode, done.stdout) == (code, b"")
    assert b"Traceback" not in done.stderr


def test_mistakes_within_a_session(cli: RemoteCli, session: str) -> None:
    for arguments, message in (
        (("exec", "--user", "nobody-here", session, "--", "true"), b"nobody-here"),
        (("exec", "--cwd", "/no/such", session, "--", "true"), b"working directory"),
        (("logs", session, "nope"), b"there is no process"),
        (("kill", session, "nope"), b"there is no process"),
    ):
        done = cli.run(*arguments)
        assert (done.returncode, message in done.stderr) == (125, True), done


def test_a_session_that_has_ended_is_said(cli: RemoteCli) -> None:
    session_id = cli.say("create").strip()
    cli.say("kill", session_id)
    done = cli.run("exec", session_id, "--", "true")
    assert (done.returncode, b"ended" in done.stderr) == (125, True)
    cli.say("kill", session_id)


def test_a_server_that_is_in_no_cluster_says_how_one_is_asked(cli: RemoteCli) -> None:
    done = cli.run("cluster", "status")
    assert done.returncode == 125
    assert b"this server runs by itself, it is not in a cluster" in done.stderr
    assert b"--url or WARREN_URL" in done.stderr
    assert b"`warren coordinator`" not in done.stderr  # that starts one


@pytest.mark.parametrize("command", ["ps", "create", "stats"])
def test_a_server_that_is_not_there_is_said(command: str) -> None:
    done = RemoteCli(f"http://127.0.0.1:{free_port()}").run(command)
    assert done.returncode == 125
    assert b"cannot be reached" in done.stderr
    assert b"warren serve" in done.stderr


def test_a_key_is_taken_from_the_environment_only(fresh_state_dir: Path) -> None:
    with running_server(fresh_state_dir, WARREN_API_KEY="right-key") as server:
        assert RemoteCli(server.url, WARREN_API_KEY="right-key").say("ps")
        for wrong, message in (({}, b"wants an API key"), ({"WARREN_API_KEY": "wrong"}, b"does not take this API key")):
            for arguments in (("ps",), ("create",), ("exec", f"ses_{32 * '0'}", "--", "true")):
                done = RemoteCli(server.url, **wrong).run(*arguments)
                assert (done.returncode, done.stdout) == (125, b"")
                assert message in done.stderr
                assert b"hint: set WARREN_API_KEY" in done.stderr
                assert (b"unset it to use the stored one" in done.stderr) is bool(wrong)


# -- completion


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_are_printed(cli: RemoteCli, shell: str) -> None:
    assert "_WARREN_COMPLETE" in cli.say("completion", shell)


def test_bash_completes_commands_and_sessions(cli: RemoteCli, session: str) -> None:
    def completed(words: str) -> str:
        asked = {"_WARREN_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
        done = warm_parent.run(cli.argv(), env={**cli.environ, **asked}, capture_output=True, text=True, timeout=60)
        return done.stdout

    assert "plain,exec" in completed("warren ex")
    assert f"plain,{session[:16]}" in completed(f"warren kill {session[:8]}")
