"""`warren keys`, `tenants` and `whoami`: the real command against a real server that wants keys, and on its files."""

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import warm_parent
from machine.remote_cli import RemoteCli
from server_process import ServerProcess, running_server
from this_run import new_state_dir, patience

from warren import AsyncSandboxClient, SandboxClient
from warren.model.errors import Unauthorized

_PATIENCE_S = patience(20.0)


def guarded_server(state: Path) -> AbstractContextManager[ServerProcess]:
    """It wants keys. Sandboxes of the fake take no memory, so it may be scarce."""
    return running_server(state, provider="fake", WARREN_AUTH="true", WARREN_MIN_FREE_MEMORY_MB="1")


@pytest.fixture(scope="module")
def state() -> Iterator[Path]:
    path = new_state_dir()
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def guarded(state: Path) -> Iterator[ServerProcess]:
    with guarded_server(state) as server:
        yield server


@pytest.fixture(scope="module")
def admin(guarded: ServerProcess) -> RemoteCli:
    """As the server's own user, who finds the first key by itself."""
    return RemoteCli(guarded.url, WARREN_CREDENTIALS=str(guarded.credentials))


def with_key(server: ServerProcess, key: str) -> RemoteCli:
    return RemoteCli(server.url, WARREN_API_KEY=key)


def made(cli: RemoteCli, *arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = cli.document("keys", "create", *arguments)
    return found


def until_refused(cli: RemoteCli) -> subprocess.CompletedProcess[bytes]:
    """A server may believe in a key for two seconds after another process has revoked it."""
    deadline = time.monotonic() + _PATIENCE_S
    while (done := cli.run("whoami")).returncode == 0:
        assert time.monotonic() < deadline
    return done


# -- keys


def test_a_variable_that_is_empty_does_not_stand_for_the_stored_key(admin: RemoteCli) -> None:
    assert admin.say("whoami")
    done = RemoteCli(admin.url, **{**admin.environ, "WARREN_API_KEY": ""}).run("whoami")
    assert (done.returncode, done.stdout) == (125, b"")
    assert b"wants an API key" in done.stderr
    assert b"WARREN_API_KEY is empty, which means no key: set it, or unset it to use the stored one" in done.stderr


@pytest.mark.anyio
async def test_an_argument_that_is_empty_does_not_stand_for_the_stored_key(
    guarded: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WARREN_API_KEY", raising=False)
    monkeypatch.setenv("WARREN_CREDENTIALS", str(guarded.credentials))
    with SandboxClient(guarded.url) as client:
        client.execute("true")
    without, native = SandboxClient(guarded.url, api_key=""), AsyncSandboxClient(guarded.url, api_key="")
    with pytest.raises(Unauthorized, match="wants an API key"):
        without.execute("true")
    with pytest.raises(Unauthorized, match="wants an API key"):
        await native.execute("true")
    without.close()
    await native.close()


def test_a_key_is_alone_on_stdout(admin: RemoteCli, guarded: ServerProcess) -> None:
    done = admin.run("keys", "create", "ci", "--tenant", "acme")
    assert done.returncode == 0
    assert b"of the tenant acme, for exec, files, read, sessions. It is shown this once" in done.stderr
    quiet = admin.say("keys", "create", "ci", "--tenant", "acme", "-q")
    for said in (done.stdout.decode(), quiet):
        assert said.startswith("wk_")
        assert said.count("\n") == 1
        assert with_key(guarded, said.strip()).document("whoami")["tenant"] == "acme"


def test_a_key_is_shown_as_clients_of_e2b_take_it(admin: RemoteCli, guarded: ServerProcess) -> None:
    said = admin.say("keys", "create", "e2b", "--tenant", "acme", "--e2b", "-q")
    assert re.fullmatch("e2b_[0-9a-f]{80}\n", said)
    key_id = with_key(guarded, said.strip()).document("whoami")["key_id"]
    turned = admin.say("keys", "rotate", key_id, "--e2b", "-q").strip()
    assert with_key(guarded, turned).document("whoami")["key_id"] == key_id
    assert with_key(guarded, said.strip()).run("whoami").returncode == 125


def test_a_key_is_made_as_it_was_asked_for(admin: RemoteCli, guarded: ServerProcess) -> None:
    bounds = ("--quota", "sessions=5", "--quota", "limits.memory_mb=1024", "--quota", "environments=base,host")
    key = made(admin, "narrow", "--tenant", "acme", "--scopes", "read,exec", "--expires", "30d", *bounds)
    assert (key["name"], key["tenant"], key["scopes"]) == ("narrow", "acme", ["exec", "read"])
    quota = {"sessions": 5, "environments": ["base", "host"], "limits": {"memory_mb": 1024}}
    assert key["quota"] == quota
    found = with_key(guarded, key["key"]).document("whoami")
    assert (found["key_id"], found["scopes"], found["key_quota"]) == (key["id"], ["exec", "read"], quota)
    row = next(line for line in admin.say("keys", "list").splitlines() if line.startswith(key["id"]))
    assert "sessions=5 environments=base,host limits.memory_mb=1024" in row
    assert " 30 d " in row


def test_keys_are_listed_and_shown_nowhere(admin: RemoteCli) -> None:
    key = made(admin, "listed", "--tenant", "listing")
    (found,) = admin.document("keys", "list", "--tenant", "listing")["keys"]
    assert found == {name: value for name, value in key.items() if name != "key"}
    assert admin.say("keys", "list", "--tenant", "listing", "-q") == f"{key['id']}\n"
    assert key["key"] not in admin.say("keys", "list", "--json")


def test_a_revoked_key_opens_nothing(admin: RemoteCli, guarded: ServerProcess) -> None:
    key = made(admin, "short")
    user = with_key(guarded, key["key"])
    assert user.document("whoami")["key_id"] == key["id"]
    assert admin.say("keys", "revoke", key["id"]) == f"revoked {key['id']}\n"
    done = user.run("whoami")
    assert (done.returncode, done.stdout) == (125, b"")
    assert b"does not take this API key" in done.stderr
    assert b"--state-dir" in done.stderr


def test_a_rotated_key_is_the_same_key_with_another_secret(admin: RemoteCli, guarded: ServerProcess) -> None:
    old = made(admin, "turning", "--tenant", "acme", "--scopes", "read")
    new = admin.say("keys", "rotate", old["id"], "-q").strip()
    assert new != old["key"]
    found = with_key(guarded, new).document("whoami")
    assert (found["key_id"], found["tenant"], found["scopes"]) == (old["id"], "acme", ["read"])
    assert with_key(guarded, old["key"]).run("whoami").returncode == 125


def test_a_rotated_key_that_the_command_has_used_itself_is_replaced_where_it_was_found(
    admin: RemoteCli, guarded: ServerProcess, tmp_path: Path
) -> None:
    (first,) = json.loads(guarded.credentials.read_text()).values()
    key = made(admin, "own", "--scopes", "admin")["key"]
    own, header = tmp_path / "credentials.json", tmp_path / "header-8000"
    names = [f"http://localhost:{guarded.port}", "http://elsewhere:8000"]
    own.write_text(json.dumps(dict(zip(names, (key, first), strict=True))))
    own.chmod(0o600)
    header.write_text(f"X-API-Key: {key}\n")
    user = RemoteCli(guarded.url, WARREN_CREDENTIALS=str(own))
    done = user.run("keys", "rotate", user.document("whoami")["key_id"])
    new = done.stdout.decode().strip()
    assert f"your own commands find the new key in {own}\n".encode() in done.stderr
    assert json.loads(own.read_text()) == dict(zip(names, (new, first), strict=True))
    assert header.read_text() == f"X-API-Key: {new}\n"
    again = RemoteCli(guarded.url, WARREN_CREDENTIALS=str(own), WARREN_API_KEY=new)
    done = again.run("keys", "rotate", again.document("whoami")["key_id"], "-q")
    assert b"WARREN_API_KEY of this shell still has the old one" in done.stderr
    assert user.document("whoami")["scopes"] == ["admin"]
    refused = again.run("whoami")
    assert b"--scopes admin" in refused.stderr


def test_an_old_secret_overlaps_on_a_server_and_in_its_files(
    admin: RemoteCli, guarded: ServerProcess, state: Path
) -> None:
    old = made(admin, "overlapping", "--scopes", "read")
    for where in ((), ("--state-dir", str(state))):
        done = admin.run("keys", "rotate", old["id"], "--overlap", "1h", *where)
        assert done.returncode == 0
        assert b"the old one is taken for another 60 min" in done.stderr
        for key in (old["key"], done.stdout.decode().strip()):
            assert with_key(guarded, key).document("whoami")["key_id"] == old["id"]
        (row,) = [line for line in admin.say("keys", "list", *where).splitlines() if line.startswith(old["id"])]
        assert " 60 min " in row
        old["key"] = done.stdout.decode().strip()
        refused = admin.run("keys", "rotate", old["id"], "--overlap", "8d", *where)
        assert (refused.returncode, refused.stdout) == (125, b"")
        assert b"--overlap is 8d, it may be at most 7d" in refused.stderr
    admin.say("keys", "revoke", old["id"])


def test_keys_are_for_admins(admin: RemoteCli, guarded: ServerProcess) -> None:
    user = with_key(guarded, made(admin, "user")["key"])
    for arguments in (("create", "mine", "--scopes", "admin"), ("list",), ("revoke", "key_0"), ("rotate", "key_0")):
        done = user.run("keys", *arguments)
        assert (done.returncode, done.stdout) == (125, b"")
        assert b"it lacks the scope admin" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["create", "x", "--scopes", "nope"], 125, "unknown scope"),
        (["create", "x", "--scopes", ""], 2, "--scopes is empty"),
        (["create", "x", "--tenant", ""], 2, "--tenant is empty"),
        (["create", "x", "--tenant", "a b"], 125, "cannot be a tenant's name"),
        (["create", "x", "--quota", "nope=1"], 125, "there is no quota 'nope'"),
        (["create", "x", "--quota", "sessions=many"], 2, "expected a number"),
        (["create", "x", "--quota", "sessions"], 2, "expected K=V"),
        (["create", "x", "--expires", "soon"], 2, "is not a duration"),
        (["create"], 2, "Missing argument"),
        (["revoke", "key_0"], 125, "there is no key 'key_0'"),
        (["rotate", "key_0"], 125, "there is no key 'key_0'"),
    ],
)
def test_a_mistake_is_one_sentence_with_a_server_and_without(
    admin: RemoteCli, state: Path, arguments: list[str], code: int, message: str
) -> None:
    for where in ((), ("--state-dir", str(state))):
        done = admin.run("keys", *arguments, *where)
        assert (done.returncode, done.stdout) == (code, b"")
        assert message in done.stderr.decode()
        assert b"Traceback" not in done.stderr


def test_bash_completes_keys(admin: RemoteCli) -> None:
    key = made(admin, "completed")
    words = f"warren keys revoke {key['id'][:6]}"
    asked = {"_WARREN_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": "3"}
    done = warm_parent.run(admin.argv(), env={**admin.environ, **asked}, capture_output=True, text=True, timeout=60)
    assert f"plain,{key['id']}" in done.stdout


# -- on the files of a server


def test_who_has_lost_every_key_makes_one_beside_the_server(guarded: ServerProcess, state: Path) -> None:
    lost = RemoteCli(guarded.url, WARREN_CREDENTIALS="/dev/null")
    assert lost.run("keys", "list").returncode == 125
    here = ("--state-dir", str(state))
    key = lost.say("keys", "create", "found", "--scopes", "admin", *here, "-q").strip()
    (shown,) = [each for each in lost.document("keys", "list", *here)["keys"] if each["name"] == "found"]
    again = with_key(guarded, key)
    assert again.document("whoami")["key_id"] == shown["id"]
    assert shown["id"] in again.say("keys", "list", "-q").split()
    rotated = lost.say("keys", "rotate", shown["id"], *here, "-q").strip()
    assert with_key(guarded, rotated).document("whoami")["key_id"] == shown["id"]
    until_refused(again)
    lost.say("keys", "revoke", shown["id"], *here)
    until_refused(with_key(guarded, rotated))


def test_files_and_server_show_the_same(admin: RemoteCli, state: Path) -> None:
    made(admin, "same", "--tenant", "same", "--expires", "1h", "--quota", "environments=base,host")
    of_server = admin.document("keys", "list", "--tenant", "same")
    assert admin.document("keys", "list", "--tenant", "same", "--state-dir", str(state)) == of_server
    assert admin.say("keys", "list", "--tenant", "same").count("environments=base,host") == 1
    assert admin.say("keys", "list", "--tenant", "same", "--state-dir", str(state)).count("environments=base,host") == 1


def test_keys_are_made_for_a_server_that_is_stopped(tmp_path: Path) -> None:
    with guarded_server(tmp_path):
        pass
    nowhere = RemoteCli("http://127.0.0.1:1")
    key = nowhere.say("keys", "create", "later", "--state-dir", str(tmp_path), "-q").strip()
    with guarded_server(tmp_path) as server:
        assert with_key(server, key).document("whoami")["tenant"] == "default"
    refused = ServerProcess(tmp_path, provider="fake", WARREN_API_KEY=key)  # as in the shell of who has tried the key
    refused.start(wait=False)
    assert refused.wait_for_end() == 125
    assert 'admin_key_configured source="environment WARREN_API_KEY"' in refused.log
    assert "of the tenant 'default': whoever has that would become an administrator" in refused.log


def test_a_directory_that_is_none_of_a_server_stays_as_it_is(tmp_path: Path) -> None:
    cli = RemoteCli("http://127.0.0.1:1")
    for place in (tmp_path, tmp_path / "none"):
        done = cli.run("keys", "create", "x", "--state-dir", str(place))
        assert (done.returncode, done.stdout) == (125, b"")
        assert b"is not the state directory of a server" in done.stderr
    assert os.listdir(tmp_path) == []


def test_a_server_and_its_files_are_not_named_at_once(admin: RemoteCli, state: Path) -> None:
    assert admin.run("keys", "list", "--state-dir", str(state), "--url", admin.url).returncode == 2


def test_files_that_are_none_of_a_server_are_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "sessions.db").write_bytes(b"no database" * 100)
    cli = RemoteCli("http://127.0.0.1:1")
    for place, message in ((tmp_path / "file", b"cannot be read"), (tmp_path, b"not a database")):
        done = cli.run("keys", "create", "x", "--state-dir", str(place))
        assert (done.returncode, done.stdout) == (125, b"")
        assert message in done.stderr
        assert b"Traceback" not in done.stderr
    assert (tmp_path / "sessions.db").read_bytes() == b"no database" * 100


# -- tenants


def test_what_is_set_for_a_tenant_holds_and_is_changed_piece_by_piece(admin: RemoteCli, tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text("policy:\n  mode: enforce\n  deny: [curl]\n")
    policy = ("--policy", str(tmp_path / "policy.yaml"))
    admin.say("tenants", "set", "built", "--quota", "sessions=10", "--quota", "limits.memory_mb=512", *policy)
    found = admin.document("tenants", "set", "built", "--quota", "sessions=", "--quota", "limits.cpus=1.5")
    assert found["quota"] == {"limits": {"memory_mb": 512, "cpus": 1.5}}
    assert (found["policy"]["mode"], found["policy"]["deny"]) == ("enforce", ["curl"])
    assert admin.document("tenants", "show", "built") == found
    assert "enforce 1 deny" in admin.say("tenants", "list")
    assert admin.document("tenants", "set", "built", "--no-policy")["policy"] == {}
    assert admin.say("tenants", "remove", "built") == "nothing is set for built any more\n"
    assert admin.run("tenants", "show", "built").returncode == 125


def test_a_tenants_quota_is_felt(admin: RemoteCli, guarded: ServerProcess) -> None:
    admin.say("tenants", "set", "small", "--quota", "sessions=1")
    user = with_key(guarded, made(admin, "small", "--tenant", "small")["key"])
    assert user.document("whoami")["quota"] == {"sessions": 1}
    session = user.say("create").strip()
    done = user.run("create")
    assert (done.returncode, done.stdout) == (125, b"")
    user.say("kill", session)
    user.say("kill", user.say("create").strip())


def test_a_policy_file_is_taken_bare_and_a_wrong_one_is_told(admin: RemoteCli, tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text("deny: [wget]\n")
    assert admin.document("tenants", "set", "bare", "--policy", str(file))["policy"]["deny"] == ["wget"]
    for text, message in (("", "holds no policy"), ("a: [", "not YAML"), ("deny: 3", "list"), ("x: 1", "no key 'x'")):
        file.write_text(text)
        done = admin.run("tenants", "set", "bare", "--policy", str(file))
        assert (done.returncode, done.stdout) == (125, b"")
        assert message in done.stderr.decode()
    file.unlink()
    assert b"cannot be read" in admin.run("tenants", "set", "bare", "--policy", str(file)).stderr
    assert admin.run("tenants", "set", "bare").returncode == 2


def test_who_you_are_is_shown_to_people_too(admin: RemoteCli) -> None:
    assert "admin, audit, exec, files, metrics, read, sessions" in admin.say("whoami")
    (key,) = json.loads(Path(admin.environ["WARREN_CREDENTIALS"]).read_text()).values()
    assert key not in admin.say("whoami")


# -- help


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("whoami", ()),
        ("keys", ("create", "list", "revoke", "rotate")),
        ("tenants", ("list", "show", "set", "remove")),
        ("audit", ()),
        ("usage", ()),
        ("webhooks", ("create", "list", "delete", "test", "deliveries")),
    ],
)
def test_every_command_has_a_help_text_with_an_example(admin: RemoteCli, name: str, parts: tuple[str, ...]) -> None:
    assert f"\n  {name} " in admin.say("--help")
    for words in ((name,), *((name, part) for part in parts)):
        assert "Example: " in admin.say(*words, "--help")
        assert "--json" in admin.say(*words, "--help") or (parts and len(words) == 1)
