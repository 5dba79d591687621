"""`warren audit` and `warren usage`: the real command against a real server that wants keys."""

import csv
import shutil
from collections.abc import Iterator

import pytest
from machine.remote_cli import RemoteCli
from server_process import ServerProcess, running_server
from this_run import new_state_dir


@pytest.fixture(scope="module")
def guarded() -> Iterator[ServerProcess]:
    path = new_state_dir()
    with running_server(path, provider="fake", WARREN_AUTH="true", WARREN_MIN_FREE_MEMORY_MB="1") as server:
        yield server
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def admin(guarded: ServerProcess) -> RemoteCli:
    return RemoteCli(guarded.url, WARREN_CREDENTIALS=str(guarded.credentials))


def new_user(admin: RemoteCli, tenant: str) -> RemoteCli:
    key = admin.say("keys", "create", "test", "--tenant", tenant, "-q").strip()
    return RemoteCli(admin.url, WARREN_API_KEY=key)


def used(cli: RemoteCli, *words: str) -> str:
    """A session in which this was run, ended again."""
    session = cli.say("create").strip()
    cli.say("exec", session, "--", "echo", *words)
    cli.say("kill", session)
    return session


def test_what_a_tenant_did_is_shown_to_it_and_to_the_operator(admin: RemoteCli) -> None:
    acme, other = new_user(admin, "acme"), new_user(admin, "other")
    session = used(acme, "said-by-acme")
    used(other, "said-by-other")
    shown = acme.say("audit", "--since", "1h")
    assert "said-by-acme" in shown
    assert "said-by-other" not in shown
    assert "said-by-other" not in acme.say("audit", "--json")
    everything = admin.say("audit", "--all", "--limit", "1000")
    assert "said-by-acme" in everything
    assert "said-by-other" in everything
    of_other = admin.document("audit", "--tenant", "other")["deeds"]
    assert {deed["tenant"] for deed in of_other} == {"other"}
    of_session = acme.document("audit", "--session", session)["deeds"]
    assert {deed["session_id"] for deed in of_session} == {session}
    assert acme.document("audit", "--action", "delete_session")["deeds"][0]["session_id"] == session


def test_a_session_that_is_there_is_named_by_its_beginning(admin: RemoteCli) -> None:
    user = new_user(admin, "brief")
    session = user.say("create").strip()
    user.say("exec", session, "--", "echo", "brief")
    found = user.document("audit", "--session", session[:12])["deeds"]
    assert {deed["session_id"] for deed in found} == {session}
    user.say("kill", session)
    done = user.run("audit", "--session", session[:12])
    assert (done.returncode, done.stdout) == (125, b"")
    assert b"give its whole id" in done.stderr


def test_the_newest_are_shown_and_it_is_said_that_there_are_more(admin: RemoteCli) -> None:
    user = new_user(admin, "many")
    for _ in range(3):
        user.say("whoami")
    done = user.run("audit", "--limit", "2")
    assert len(done.stdout.splitlines()) == 3
    assert b"--limit N shows more" in done.stderr
    assert len(user.document("audit", "--limit", "2")["deeds"]) == 2
    assert len(user.document("audit", "--action", "whoami", "--limit", "5000")["deeds"]) == 3


def test_times_may_be_ago_or_of_the_clock(admin: RemoteCli) -> None:
    user = new_user(admin, "timely")
    user.say("whoami")
    for since in ("1h", "3600", "2020-01-01", "2020-01-01T00:00:00+02:00", "1577836800"):
        assert user.document("audit", "--since", since)["deeds"]
    assert user.document("audit", "--until", "1h")["deeds"] == []
    done = user.run("audit", "--since", "once")
    assert (done.returncode, b"is no time" in done.stderr) == (125, True)


def test_usage_is_shown_by_day_with_a_total(admin: RemoteCli) -> None:
    user = new_user(admin, "spender")
    used(user, "one")
    used(user, "two")
    found = user.document("usage")
    assert [(row["tenant"], row["sessions"], row["commands"]) for row in found["usage"]] == [("spender", 2, 2)]
    lines = user.say("usage").splitlines()
    assert (lines[0].split()[0], lines[-2].split()[0], lines[-1]) == ("DAY", "total", "artifacts take 0.0 MiB now")
    (row,) = csv.DictReader(user.say("usage", "--csv").splitlines())
    assert (row["tenant"], row["sessions"]) == ("spender", "2")
    everybody = csv.DictReader(admin.say("usage", "--all", "--csv").splitlines())
    assert {"spender", "default"} <= {row["tenant"] for row in everybody}
    assert {row["tenant"] for row in admin.document("usage", "--tenant", "spender")["usage"]} == {"spender"}
    assert user.document("usage", "--from", "2020-01-01", "--to", "2020-01-31")["usage"] == []


@pytest.mark.parametrize("command", ["audit", "usage"])
def test_other_tenants_are_for_admins(admin: RemoteCli, command: str) -> None:
    user = new_user(admin, "curious")
    for whose in (("--all",), ("--tenant", "curious"), ("--tenant", "default")):
        done = user.run(command, *whose)
        assert (done.returncode, done.stdout) == (125, b"")
        assert b"it lacks the scope audit" in done.stderr
    assert admin.run(command, "--all", "--tenant", "x").returncode == 2


def test_the_audit_record_is_verified_beside_the_server_and_a_change_shows(
    admin: RemoteCli, guarded: ServerProcess
) -> None:
    used(new_user(admin, "verified"), "verified-words")
    admin.document("audit", "--all")
    state_dir = str(guarded.state_dir)
    first = admin.document("audit", "verify", "--state-dir", state_dir)
    assert (first["whole"], first["problems"]) == (True, [])
    used(new_user(admin, "verified"), "again")
    admin.document("audit", "--all")
    second = admin.document("audit", "verify", "--state-dir", state_dir, "--head", first["head"])
    assert second["whole"]
    assert second["head"] != first["head"]
    copy = guarded.state_dir.with_name("copy-of-the-record")
    shutil.copytree(guarded.state_dir / "audit", copy / "audit")
    try:
        (file,) = (copy / "audit").iterdir()
        file.write_bytes(file.read_bytes().replace(b"verified-words", b"innocent-words"))
        result = admin.run("audit", "verify", "--state-dir", str(copy))
        assert result.returncode == 1
        assert b"the entry was changed" in result.stderr
    finally:
        shutil.rmtree(copy)
