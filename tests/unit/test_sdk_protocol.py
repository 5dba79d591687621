"""The pure parts of the SDK: addresses, requests, errors, events, results; and that making a client does nothing."""

import inspect
import json
import subprocess
import sys
from typing import Any

import pytest

import warren
from warren import AsyncSandboxClient, SandboxClient
from warren.model.errors import InvalidRequest, NoCapacity, WarrenError
from warren.sdk.addresses import parse_address
from warren.sdk.options import ClientOptions, WorkOptions, command_values, network_values, session_values
from warren.sdk.protocol import ClientRequest, EventParser, error_from_event, error_from_response
from warren.sdk.results import BaseResult, ExecuteResult, OutputChunk


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("http://localhost:8000", "http://localhost:8000"),
        ("http://localhost:8000/", "http://localhost:8000"),
        ("localhost:8000", "http://localhost:8000"),
        ("https://example.org", "https://example.org:443"),
        ("https://example.org/warren/", "https://example.org:443/warren"),
        ("http://[::1]:8000", "http://[::1]:8000"),
    ],
)
def test_an_address_is_read(given: str, url: str) -> None:
    assert parse_address(given).url == url


@pytest.mark.parametrize("given", ["ftp://x", "http://", "http://h:port", "http://[::1", "http://h:99999"])
@pytest.mark.parametrize("client", [SandboxClient, AsyncSandboxClient])
def test_a_bad_url_is_told_when_the_client_is_made(given: str, client: type[SandboxClient]) -> None:
    with pytest.raises(InvalidRequest, match="is not the URL of a server"):
        client(given)


@pytest.mark.parametrize("client", [SandboxClient, AsyncSandboxClient])
def test_options_that_contradict_each_other_are_refused(client: type[SandboxClient]) -> None:
    with pytest.raises(InvalidRequest, match="not both") as caught:
        client(session_id="a", thread_id="b")
    assert caught.value.remedy
    with pytest.raises(InvalidRequest, match="no mode 'far'"):
        client(mode="far")
    with pytest.raises(InvalidRequest, match="takes the id of a session"):
        client.attach("")


@pytest.mark.parametrize("client", [SandboxClient, AsyncSandboxClient])
def test_the_options_for_type_checkers_are_the_arguments_of_a_client(client: type) -> None:
    named = {*inspect.signature(client).parameters} - {"self", "server_url", "backend", "options"}
    assert named | WorkOptions.__annotations__.keys() == ClientOptions.__annotations__.keys()
    assert not named & WorkOptions.__annotations__.keys()


@pytest.mark.parametrize("client", [SandboxClient, AsyncSandboxClient])
def test_an_option_that_does_not_exist_is_refused(client: type[SandboxClient]) -> None:
    with pytest.raises(TypeError, match=r"no option 'tiemout'; did you mean timeout\?"):
        client(tiemout=30)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"did you mean thread_id.*api_key.*mode.*session_id"):
        client(thread="x")  # type: ignore[call-arg]


def test_a_session_is_asked_for_with_the_options_that_were_given() -> None:
    assert session_values("", {"env": {}, "require": (), "network": None, "gpus": 0, "image": ""}) == {}
    given = session_values("t", {"require": ("seccomp",), "gpus": ("0", "1"), "idle_timeout_s": 60, "timeout": 3})
    assert given == {"thread_id": "t", "require": ["seccomp"], "gpus": ["0", "1"], "idle_timeout_s": 60}
    network = session_values("", {"network": {"allow": ("example.com",)}})
    assert network == {"network": {"internet": False, "allow": ["example.com"]}}


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({"network": ["pypi.org"]}, "network is .*must be a mapping.*allow"),
        ({"network": "pypi.org"}, "network is .*must be a mapping"),
        ({"limits": {"memory": 100}}, "no limit 'memory'.*memory_mb, cpus"),
        ({"limits": 512}, "limits is 512.*memory_mb"),
    ],
)
def test_an_option_of_another_kind_is_refused(options: Any, hint: str) -> None:
    with pytest.raises(InvalidRequest, match=hint):
        SandboxClient(**options)


@pytest.mark.parametrize("timeout", ["5", True, [5]])
def test_a_timeout_that_is_no_number_is_refused(timeout: Any) -> None:
    with SandboxClient(session_id="ses_a") as client, pytest.raises(InvalidRequest, match="a number of seconds"):
        client.execute("ls", timeout=timeout)


_MADE = """
import sys
from warren import AsyncSandboxClient, BatchSandboxClient, SandboxClient

def watch(event, _):
    if event in ("socket.__new__", "socket.connect", "_thread.start_new_thread", "subprocess.Popen"):
        print("a constructor does no I/O, but", event)

sys.addaudithook(watch)
for mode in ("remote", "local"):
    print(SandboxClient(mode=mode), AsyncSandboxClient(mode=mode), BatchSandboxClient(mode=mode))
"""


def test_making_a_client_does_nothing() -> None:
    said = subprocess.run([sys.executable, "-c", _MADE], capture_output=True, text=True).stdout
    assert "does no I/O" not in said
    assert said.count("without a session") == 4
    assert "<BatchSandboxClient local>" in said


def test_the_environment_says_where_the_server_is_and_with_which_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARREN_URL", "http://there:1234")
    monkeypatch.setenv("WARREN_API_KEY", "from-environment")
    client = SandboxClient()
    assert "http://there:1234" in repr(client)
    assert "from-environment" not in repr(client)
    monkeypatch.setenv("WARREN_PORT", "8123")
    assert "http://there:1234" in repr(SandboxClient())
    monkeypatch.delenv("WARREN_URL")
    assert "http://localhost:8123" in repr(SandboxClient())
    monkeypatch.setenv("WARREN_PORT", "tcp://10.0.0.1:80")  # as Kubernetes sets it for a service called warren
    assert "http://localhost:8000" in repr(SandboxClient())


@pytest.mark.parametrize(("given", "hint"), [("", "WARREN_API_KEY is empty"), ("wk_a", "unset it to use the stored")])
def test_a_refused_key_of_the_variable_is_told_apart(given: str, hint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = b'{"code": "unauthorized", "detail": "no", "remedy": "send one"}'
    monkeypatch.setenv("WARREN_API_KEY", given)
    assert hint in error_from_response(401, refusal, given).remedy
    assert error_from_response(401, refusal, "wk_argument").remedy == "send one"
    monkeypatch.delenv("WARREN_API_KEY")
    assert error_from_response(401, refusal, given).remedy == "send one"


@pytest.mark.parametrize("key", ["X-API-Key: wk_a", "x-api-key:wk_a", "'wk_a'", '"e2b_a', "Bearer wk_a", "wk_a ", "ü"])
def test_what_is_more_than_a_key_is_refused(key: str) -> None:
    with pytest.raises(InvalidRequest, match="the key alone"):
        SandboxClient(api_key=key)


def test_a_request_says_whether_it_may_be_repeated() -> None:
    methods = ("GET", "PUT", "DELETE", "POST", "PATCH")
    assert [ClientRequest(method, "/").is_safe_to_repeat for method in methods] == [True] * 3 + [False] * 2
    assert ClientRequest("POST", "/", key="k").is_safe_to_repeat
    assert ClientRequest("POST", "/", repeatable=True).is_safe_to_repeat


def test_a_query_leaves_out_what_is_not_given() -> None:
    assert ClientRequest("GET", "/x", {"a": "b c/ü", "none": None, "yes": True, "empty": ""}).target == (
        "/x?a=b+c%2F%C3%BC&yes=true&empty="
    )


def test_an_error_is_the_class_it_was_in_the_server() -> None:
    error = error_from_response(503, b'{"code": "no_capacity", "detail": "full", "remedy": "wait"}', retry_after="7")
    assert isinstance(error, NoCapacity)
    assert (str(error), error.retry_after_s) == ("full (wait)", 7)
    assert type(error_from_response(500, b'{"code": "of the future", "detail": "x"}')) is WarrenError
    assert isinstance(error_from_event({"code": "no_capacity", "detail": "full"}), NoCapacity)


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_events_are_read_however_they_are_cut(size: int) -> None:
    text = "line separator \u2028, next line \x85, form feed \x0c, ünï"
    data = ": keep-alive\n\n" + f"event: output\nid: 3\ndata: {json.dumps({'data': text}, ensure_ascii=False)}\n\n"
    raw, parser = data.encode(), EventParser()
    found = [event for start in range(0, len(raw), size) for event in parser.feed(raw[start : start + size])]
    assert found == [("output", {"data": text})]


def test_a_result_ignores_what_it_does_not_know() -> None:
    result = ExecuteResult.of({"exit_code": 0, "output": "x", "of_the_future": 1})
    assert (result.ok, list(result)[:2]) == (True, ["exit_code", "output"])
    assert str(OutputChunk("stdout", b"text\xff", "text\ufffd", 0, 5)) == "text\ufffd"


def test_a_result_becomes_a_dictionary_with_all_that_is_in_it() -> None:
    artifact = dict.fromkeys(
        ("artifact_id", "name", "sha256", "mime_type", "session_id", "created_at", "expires_at"), "x"
    )
    saved = {"artifacts": [{**artifact, "size": 1}], "left_out": [{"path": "y", "why": "z"}], "left_out_count": 1}
    values = ExecuteResult.of({"exit_code": 3, "saved": saved}).to_dict()
    assert type(values) is dict
    assert json.loads(json.dumps(values))["saved"]["artifacts"][0]["name"] == "x"
    assert (values["exit_code"], ExecuteResult.of(values)["saved"].left_out_count) == (3, 1)
    assert not isinstance(ExecuteResult(0), dict)


def test_every_public_name_is_there() -> None:
    for name in warren.__all__:
        assert getattr(warren, name).__name__ == name
        assert name in dir(warren)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = warren.nothing


def test_every_result_of_the_clients_is_public() -> None:
    assert {kind.__name__ for kind in BaseResult.__subclasses__()} <= set(warren.__all__)


def test_importing_warren_loads_no_other_package() -> None:
    code = "import sys; import warren; print([n for n in sys.modules if n.split('.')[0] in ('aiohttp', 'pydantic')])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


def test_the_blocking_client_is_loaded_without_asyncio_and_without_the_server() -> None:
    code = "import sys; from warren import SandboxClient; SandboxClient(); SandboxClient(mode='local'); "
    code += "print([n for n in sys.modules if n.split('.')[0] in ('aiohttp', 'fastapi', 'pydantic')])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


@pytest.mark.parametrize("command", [5, None, {"ls"}])
def test_a_command_of_another_type_is_refused_with_what_it_may_be(command: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"the command is .*, it must be a text or a list of texts"):
        command_values(command, None)
    assert command_values(("ls", "-l"), None) == {"command": ["ls", "-l"]}


@pytest.mark.parametrize("name", ["allow", "deny"])
def test_a_rule_that_is_no_list_is_not_taken_for_a_list_of_letters(name: str) -> None:
    with pytest.raises(InvalidRequest, match=f"{name} is 'pypi.org', it must be a list .*write \\['pypi.org'\\]"):
        network_values({name: "pypi.org"})
