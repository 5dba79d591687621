"""`warren secrets`: the real command against a real server."""

import shutil
from collections.abc import Iterator

import pytest
from machine.remote_cli import RemoteCli
from server_process import running_server
from this_run import new_state_dir

VALUE = "sk-live-0123456789"


@pytest.fixture(scope="module")
def cli() -> Iterator[RemoteCli]:
    path = new_state_dir()
    with running_server(path, provider="fake", WARREN_MIN_FREE_MEMORY_MB="1") as server:
        yield RemoteCli(server.url)
        assert VALUE not in server.log
    shutil.rmtree(path)


def test_a_secret_is_set_from_stdin_listed_and_deleted(cli: RemoteCli) -> None:
    where = ("--host", "api.example.com", "--header", "Authorization", "--format", "Bearer {}")
    said = cli.say("secrets", "set", "crm", *where, stdin=f"{VALUE}\n".encode())
    assert said == "crm is sent to api.example.com and nowhere else\n"
    cli.say(
        "secrets",
        "set",
        "maps",
        "--host",
        "maps.example.com",
        "--query",
        "key",
        "--expires",
        "1h",
        stdin=VALUE.encode(),
    )
    listed = cli.say("secrets", "list")
    assert "Authorization: Bearer {}" in listed
    assert "?key={}" in listed
    assert VALUE not in listed
    (crm, maps) = cli.document("secrets", "list")["secrets"]
    assert (crm["name"], crm["hosts"], crm["expires_at"]) == ("crm", ["api.example.com"], None)
    assert maps["expires_at"] is not None
    assert cli.say("secrets", "delete", "crm") == "deleted crm\n"
    assert cli.run("secrets", "delete", "crm").returncode == 125
    assert [each["name"] for each in cli.document("secrets", "list")["secrets"]] == ["maps"]


@pytest.mark.parametrize("stdin", [b"", b"short", b"two\nlines-of-it", b"x" * 9000, "schlüssel-lang".encode()])
def test_a_wrong_value_is_refused_and_not_repeated(cli: RemoteCli, stdin: bytes) -> None:
    done = cli.run("secrets", "set", "wrong", "--host", "api.example.com", "--header", "X-Key", stdin=stdin)
    assert done.returncode == 125
    assert b"value of a secret" in done.stderr
    assert b"hint: " in done.stderr
    assert not stdin or stdin not in done.stderr


def test_the_value_is_no_argument_and_hosts_are_needed(cli: RemoteCli) -> None:
    assert cli.run("secrets", "set", "crm", "--host", "api.example.com", "--value", VALUE).returncode == 2
    assert cli.run("secrets", "set", "crm", VALUE, "--host", "api.example.com").returncode == 2
    assert cli.run("secrets", "set", "crm", "--header", "X-Key", stdin=VALUE.encode()).returncode == 2


def test_a_session_names_its_secrets(cli: RemoteCli) -> None:
    done = cli.run("create", "--secret", "nobody")
    assert done.returncode == 125
    assert b"no valid secret 'nobody'" in done.stderr
