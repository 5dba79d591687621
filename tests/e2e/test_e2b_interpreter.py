"""E2B's code interpreter, on a server alone and in a cluster: the requests of its clients, the lines they read."""

import json
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import anyio
import httpx
import pytest
from cluster_processes import Cluster, running_cluster
from e2e.api_client import Api
from e2e.conftest import NewState
from marks import first_of
from redis_server import RedisServer
from server_process import ServerProcess, running_server

pytestmark = pytest.mark.anyio

CODE_PORT = "49999"


@pytest.fixture(scope="module", params=first_of(("alone", "cluster")))
def server(request: pytest.FixtureRequest, new_state: NewState) -> Iterator[ServerProcess]:
    """The server that clients talk to."""
    flags = ("--pool-size", "1", "--cpus", "2")
    if request.param == "alone":
        with running_server(new_state(), *flags) as server:
            yield server
        return
    states = [new_state(), new_state()]
    cluster = Cluster(RedisServer(states[0] / "redis"), states[:1], states[1:], *flags)
    with running_cluster(cluster):
        yield cluster.coordinators[0]


@pytest.fixture
async def code(server: ServerProcess) -> AsyncIterator[httpx.AsyncClient]:
    """What the SDK has for the interpreter of a sandbox."""
    async with Api(server.url) as api, api.session(env={"OF_SESSION": "1"}) as session:
        headers = {"E2b-Sandbox-Id": session.id.removeprefix("ses_"), "E2b-Sandbox-Port": CODE_PORT}
        async with httpx.AsyncClient(base_url=server.url, headers=headers, timeout=60) as client:
            yield client


async def run(client: httpx.AsyncClient, code: str, **more: Any) -> list[dict[str, Any]]:
    """All lines of a cell, read as the SDK reads them, but for keep-alives."""
    body = {"code": code, "context_id": None, "language": None, "env_vars": None, **more}
    async with client.stream("POST", "/execute?source=test", json=body) as answer:
        assert answer.status_code == 200, await answer.aread()
        lines = [json.loads(line) async for line in answer.aiter_lines()]
    assert lines.pop() == {"type": "end_of_execution"}
    return [line for line in lines if line["type"] != "keepalive"]


async def text(client: httpx.AsyncClient, code: str, **more: Any) -> Any:
    return next((line["text"] for line in await run(client, code, **more) if line.get("is_main_result")), None)


async def test_a_cell_is_told_line_by_line(code: httpx.AsyncClient) -> None:
    before = time.time_ns()
    source = "import sys\nprint('out\\u2028\\x0cž')\nprint('err', file=sys.stderr, flush=True)\ndisplay('shown')\n'it'"
    out, err, shown, main, count = await run(code, source)
    assert (out["type"], out["text"], err["type"], err["text"]) == ("stdout", "out\u2028\x0cž\n", "stderr", "err\n")
    assert before < out["timestamp"] <= err["timestamp"] <= time.time_ns()
    assert (shown["text"], shown["is_main_result"]) == ("shown", False)
    assert main == {"type": "result", "text": "it", "is_main_result": True}
    assert count == {"type": "number_of_executions", "execution_count": 1}


async def test_formats_errors_and_long_texts(code: httpx.AsyncClient) -> None:
    rich = "class A:\n def _repr_html_(self): return '<b>'\n def _repr_json_(self): return {'a': 1}\nA()"
    (result, _) = await run(code, rich)
    assert (result["html"], result["json"], "display_id" in result) == ("<b>", {"a": 1}, False)
    (error, count) = await run(code, "1/0")
    assert (error["type"], error["name"], error["value"]) == ("error", "ZeroDivisionError", "division by zero")
    assert "1/0" in error["traceback"]
    assert count["execution_count"] == 2
    assert await text(code, "'x' * 300_000") == "x" * 300_000
    *_, told, _ = await run(code, "print('y' * 20_000_000)")
    assert told["type"] == "stderr"
    assert "too much, and left out" in told["text"]


async def test_a_sandbox_has_one_place_and_one_user_for_code(code: httpx.AsyncClient) -> None:
    names = ("HOME", "USER", "OF_SESSION", "E2B_SANDBOX_ID", "ONCE")
    asked = f"import os; [os.getcwd(), *map(os.environ.get, {names})]"
    usual = f"['/home/user', '/home/user', 'user', '1', '{code.headers['E2b-Sandbox-Id']}', "
    assert (await code.get("/health")).status_code == 200
    assert await text(code, asked, env_vars={"ONCE": "now"}) == f"{usual}'now']"
    assert await text(code, asked) == f"{usual}None]"
    made = (await code.post("/contexts", json={})).json()
    assert (made["language"], made["cwd"]) == ("python", "/home/user")
    assert await text(code, asked, context_id=made["id"]) == f"{usual}None]"


async def test_contexts_are_created_listed_restarted_and_removed(code: httpx.AsyncClient) -> None:
    answer = await code.post("/contexts", json={"language": "js", "cwd": "/tmp"})
    made = answer.json()
    assert (answer.status_code, made) == (200, {"id": made["id"], "language": "javascript", "cwd": "/tmp"})
    assert await text(code, "const a = 6; [process.cwd(), a].join()", context_id=made["id"]) == "/tmp,6"
    assert (await run(code, "echo $PWD", language="bash"))[0]["text"] == "/home/user\n"
    found = {context["id"]: context for context in (await code.get("/contexts")).json()}
    assert (found[made["id"]], found["ctx_bash"]["cwd"]) == (made, "/home/user")
    place = f"/contexts/{made['id']}"
    assert (await code.post(f"{place}/restart")).is_success
    (error, _) = await run(code, "a", context_id=made["id"])
    assert error["name"] == "ReferenceError"
    assert (await code.delete(place)).is_success
    for answer in (
        await code.delete(place),
        await code.post(f"{place}/restart"),
        await code.post("/execute", json={"code": "1", "context_id": made["id"]}),
    ):
        assert (answer.status_code, answer.json()["code"]) == (404, 404)
        assert "/api/" not in answer.text  # clients of E2B know no route of Warren's own


async def test_a_line_that_is_written_in_pieces_comes_whole(code: httpx.AsyncClient) -> None:
    pieces = "printf 'one '; env true; echo two; sleep 0.5; printf rest; sleep 1; printf end"
    *lines, _ = await run(code, pieces, language="bash")
    assert [(line["type"], line["text"]) for line in lines] == [
        ("stdout", "one two\n"),
        ("stdout", "rest"),
        ("stdout", "end"),
    ]


async def test_python_and_javascript_are_there_from_the_start_and_cost_nothing(code: httpx.AsyncClient) -> None:
    async def listed() -> list[tuple[str, str]]:
        return [(context["id"], context["cwd"]) for context in (await code.get("/contexts")).json()]

    first, second = ("ctx_python", "/home/user"), ("ctx_javascript", "/home/user")
    assert await listed() == [first, second]
    for name in ("ctx_python", "ctx_javascript"):  # they hold nothing yet
        assert (await code.post(f"/contexts/{name}/restart")).status_code == 204
        assert (await code.delete(f"/contexts/{name}")).status_code == 204
    assert (await code.post("/contexts/ctx_bash/restart")).status_code == 404
    count = "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -c 'python/[m]ain\\|javascript/[m]ain'"
    assert (await run(code, count, language="bash"))[0]["text"] == "0\n"
    made = [(await code.post("/contexts", json={"cwd": "/tmp"})).json()["id"] for _ in range(3)]
    assert await text(code, "6 * 7", context_id="ctx_javascript") == "42"
    others = [("ctx_bash", "/home/user"), *((name, "/tmp") for name in made)]
    assert await listed() == [first, second, *others]  # those that were made later come later
    assert await text(code, "import os; os.getcwd()", context_id="ctx_python") == "/home/user"
    assert (await code.delete("/contexts/ctx_python")).status_code == 204
    assert await listed() == [first, second, *others]


async def test_a_directory_of_root_makes_a_context_of_root_where_that_is_allowed(server: ServerProcess) -> None:
    whoami = "import os; [os.getuid(), os.getcwd(), os.environ['HOME'], os.environ['USER']]"
    async with Api(server.url) as api, api.session(environment="e2b") as rooted, api.session() as plain:
        headers = {"E2b-Sandbox-Id": rooted.id.removeprefix("ses_"), "E2b-Sandbox-Port": CODE_PORT}
        async with httpx.AsyncClient(base_url=server.url, headers=headers, timeout=60) as client:
            made = (await client.post("/contexts", json={"cwd": "/root"})).json()
            assert made == {"id": made["id"], "language": "python", "cwd": "/root"}
            usual = (await client.post("/contexts", json={"cwd": "/tmp"})).json()
            for _ in range(2):
                assert await text(client, whoami, context_id=made["id"]) == "[0, '/root', '/root', 'root']"
                assert await text(client, whoami, context_id=usual["id"]) == "[1000, '/tmp', '/home/user', 'user']"
                assert (await client.post(f"/contexts/{made['id']}/restart")).status_code == 204
            endless = {"code": "print(1)\nwhile True: pass", "context_id": made["id"]}
            async with client.stream("POST", "/execute", json=endless) as answer:
                await anext(answer.aiter_lines())
            assert await text(client, whoami, context_id=made["id"]) == "[0, '/root', '/root', 'root']"
            missing = await client.post("/contexts", json={"cwd": "/root/nowhere"})
            assert (missing.status_code, "/root/nowhere" in missing.json()["message"]) == (400, True)
        headers["E2b-Sandbox-Id"] = plain.id.removeprefix("ses_")
        async with httpx.AsyncClient(base_url=server.url, headers=headers, timeout=60) as client:
            refused = await client.post("/contexts", json={"cwd": "/root"})
            assert (refused.status_code, "Permission denied" in refused.json()["message"]) == (400, True)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"code": None},
        {"code": "1", "language": "cobol"},
        {"code": "1", "language": "kotlin"},
        {"code": "1", "language": "python", "context_id": "ctx_python"},
        {"code": "1", "env_vars": {"A=B": "1"}},
        {"code": "1", "env_vars": [1]},
        [],
    ],
)
async def test_what_cannot_be_run_is_refused(code: httpx.AsyncClient, body: Any) -> None:
    answer = await code.post("/execute", json=body)
    assert answer.status_code == 400
    assert (answer.json()["code"], len(answer.json()["message"]) > 10) == (400, True)


async def test_output_comes_as_it_is_made_and_who_leaves_interrupts(code: httpx.AsyncClient) -> None:
    source = "import time\nkept = 'kept'\nprint('first')\ntime.sleep(7)\nprint('second')\ntime.sleep(600)"
    began = time.monotonic()
    async with code.stream("POST", "/execute", json={"code": source}) as answer:
        lines = answer.aiter_lines()
        heard = [(json.loads(await anext(lines))["type"], time.monotonic() - began) for _ in range(3)]
    (_, at_first), (_, at_keepalive), (_, at_second) = heard
    assert [kind for kind, _ in heard] == ["stdout", "keepalive", "stdout"]
    assert at_first + 4 < at_keepalive < at_second
    assert await text(code, "kept") == "kept"
    assert time.monotonic() - began < 60


async def test_a_context_that_dies_is_told_and_is_there_again(code: httpx.AsyncClient) -> None:
    (error,) = await run(code, "import os; os._exit(3)")
    assert (error["type"], error["name"]) == ("error", "ContextLost")
    assert await text(code, "40 + 2") == "42"
    await run(code, "import os, threading\nthreading.Timer(0.2, os._exit, [1]).start()")
    await anyio.sleep(0.6)
    assert await text(code, "41 + 2") == "43"


async def test_a_sandbox_that_is_gone_is_a_502_and_a_cut_stream(server: ServerProcess) -> None:
    async with Api(server.url) as api, api.session() as session:
        named = session.id.removeprefix("ses_")
        headers = {"E2b-Sandbox-Id": named, "E2b-Sandbox-Port": CODE_PORT}
        async with httpx.AsyncClient(base_url=server.url, headers=headers, timeout=60) as client:
            cell = {"code": "print(1)\nimport time; time.sleep(600)"}
            async with client.stream("POST", "/execute", json=cell) as answer:
                lines = answer.aiter_lines()
                await anext(lines)
                await api.call("DELETE", f"/api/sessions/{session.id}")
                with pytest.raises(httpx.RemoteProtocolError):
                    await anext(lines)
            gone = await client.post("/execute", json={"code": "1"})
        assert (gone.status_code, gone.json()["message"], gone.json()["sandboxId"]) == (
            502, "The sandbox was not found", named,
        )  # fmt: skip
