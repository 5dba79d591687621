"""Code contexts over HTTP. CodeSuite keeps to bash, and to what the fake's shell knows."""

import asyncio
import time
from typing import Any

import pytest
from e2e.api_client import Api, SessionApi, until
from e2e.once_suite import cut_off
from this_run import patience


async def cell(session: SessionApi, code: str, *, headers: dict[str, str] | None = None, **rest: Any) -> dict[str, Any]:
    """The execution of a cell, in bash unless something else is said."""
    if "context" not in rest:
        rest.setdefault("language", "bash")
    found: dict[str, Any] = await session.post("/code", {"code": code, **rest}, headers=headers)
    return found


def said(execution: dict[str, Any]) -> str:
    return "".join(execution["logs"]["stdout"])


async def contexts(session: SessionApi) -> dict[str, Any]:
    return {found["id"]: found for found in (await session.get("/contexts"))["contexts"]}


async def is_busy(session: SessionApi, context_id: str = "ctx_bash") -> bool:
    return (await contexts(session)).get(context_id, {}).get("state") == "busy"


@pytest.mark.anyio
class CodeSuite:
    async def test_state_lasts_from_cell_to_cell(self, session: SessionApi) -> None:
        first = await cell(session, "number=42; cd /tmp; echo one; echo two >&2")
        assert said(first) == "one\n"
        assert "".join(first["logs"]["stderr"]) == "two\n"
        assert (first["context_id"], first["language"], first["reason"]) == ("ctx_bash", "bash", "exited")
        assert (first["error"], first["context_lost"], first["truncated"]) == (None, None, False)
        assert first["dropped"] == {"text": 0, "events": 0}
        second = await cell(session, "echo $number; pwd")
        assert said(second) == "42\n/tmp\n"
        assert second["execution_count"] == first["execution_count"] + 1
        assert second["id"] != first["id"]
        assert await session.output("pwd") == "/workspace\n"

    async def test_contexts_do_not_share_their_state(self, session: SessionApi) -> None:
        made = await session.post("/contexts", {"language": "sh", "cwd": "/tmp", "env": {"A": "b"}}, status=201)
        assert (made["language"], made["state"], made["default"], made["cwd"]) == ("bash", "idle", False, "/tmp")
        assert said(await cell(session, "number=1; pwd; echo $A", context=made["id"])) == "/tmp\nb\n"
        assert said(await cell(session, "echo x$number")) == "x\n"
        assert set(await contexts(session)) == {made["id"], "ctx_bash"}
        await session.call("DELETE", f"/contexts/{made['id']}", status=204)
        assert set(await contexts(session)) == {"ctx_bash"}
        await session.refused("DELETE", f"/contexts/{made['id']}", status=404, code="context_not_found")
        body = {"code": "true", "context": made["id"]}
        await session.refused("POST", "/code", body, status=404, code="context_not_found")

    async def test_a_failure_of_the_code_is_a_result(self, session: SessionApi) -> None:
        failed = await cell(session, "echo before; no-such-program")
        assert (failed["reason"], said(failed)) == ("exited", "before\n")
        assert failed["error"] is not None
        assert set(failed["error"]) == {"name", "value", "traceback"}
        assert said(await cell(session, "echo after")) == "after\n"

    async def test_variables_of_the_session_and_of_one_cell(self, api: Api) -> None:
        async with api.session(env={"FROM": "session"}) as session:
            assert said(await cell(session, "echo $FROM $ONE", env={"ONE": "cell"})) == "session cell\n"
            assert said(await cell(session, "echo $FROM x$ONE")) == "session x\n"
            made = await session.post("/contexts", {"language": "bash"}, status=201)
            assert said(await cell(session, "echo $FROM", context=made["id"])) == "session\n"

    @pytest.mark.parametrize(
        ("body", "status", "code"),
        [
            ({"code": "1", "language": "cobol"}, 422, "invalid_request"),
            ({"code": "1", "context": "ctx_bash", "language": "python"}, 422, "invalid_request"),
            ({"code": "1", "context": "ctx_bash_12345678"}, 404, "context_not_found"),
            ({"code": "1", "context": "p_123"}, 404, "context_not_found"),
            ({"code": "1\0", "language": "bash"}, 422, "invalid_request"),
            ({"code": "1", "language": "bash", "env": {"A=B": "c"}}, 422, "invalid_request"),
            ({"code": "1", "timeout_s": 1e6}, 422, "invalid_request"),
        ],
    )
    async def test_what_cannot_be_is_refused(
        self, session: SessionApi, body: dict[str, Any], status: int, code: str
    ) -> None:
        await session.refused("POST", "/code", body, status=status, code=code)

    async def test_ids_of_contexts_are_not_for_processes(self, session: SessionApi) -> None:
        for name in ("ctx_bash", "ctx_python_0123abcd", "cell_x"):
            body = {"command": "sleep 60", "process_id": name}
            await session.refused("POST", "/processes", body, status=422, code="invalid_request")

    async def test_a_stream_tells_everything_as_it_comes(self, session: SessionApi) -> None:
        kinds, text, last = [], "", {}
        async with session.events("POST", "/code", {"code": "echo a; echo b >&2; false", "language": "bash"}) as events:
            async for event in events:
                kinds.append(event.kind)
                text += event.data.get("text", "")
                last = event.data
        assert (kinds[0], kinds[-2:]) == ("started", ["error", "end"])
        assert sorted(text.split()) == ["a", "b"]
        assert "results" not in last
        assert "logs" not in last
        assert (last["reason"], last["execution_count"]) == ("exited", 1)

    async def test_a_socket_tells_the_same_and_takes_an_interrupt(self, session: SessionApi) -> None:
        async with session.socket("/code") as socket:
            await socket.raw.send_json({"code": "echo ready; sleep 60", "language": "bash"})
            started = await socket.expect("started")
            assert (started["context_id"], started["language"]) == ("ctx_bash", "bash")
            assert (await socket.expect("stdout"))["text"] == "ready\n"
            await asyncio.sleep(0.3)  # bash heeds an interrupt when it has begun its command
            await socket.send("interrupt")
            while (message := await socket.next())["type"] != "end":
                pass
            assert message["error"] is not None
            assert message["context_lost"] is None
            assert await socket.closed() == 1000
        assert said(await cell(session, "echo alive")) == "alive\n"

    async def test_a_socket_takes_nothing_else(self, session: SessionApi) -> None:
        for wrong in ("nonsense", '{"type": "stdin"}', b"bytes"):
            async with session.socket("/code") as socket:
                await socket.raw.send_json({"code": "echo on; sleep 60", "language": "bash"})
                await socket.expect("started")
                await socket.expect("stdout")
                await asyncio.sleep(0.3)  # bash heeds an interrupt when it has begun its command
                await (socket.raw.send_bytes(wrong) if isinstance(wrong, bytes) else socket.raw.send_str(wrong))
                assert (await socket.expect("error"))["code"] in ("invalid_json", "invalid_request")
                assert await socket.closed() in (4400, 4422)
        assert said(await cell(session, "echo alive")) == "alive\n"

    async def test_cells_wait_for_each_other_and_contexts_do_not(self, session: SessionApi) -> None:
        await cell(session, "n=0")
        slow = asyncio.create_task(cell(session, "sleep 1; echo slow; n=1"))
        await until(lambda: is_busy(session))
        next_one = asyncio.create_task(cell(session, "echo n$n"))
        made = await session.post("/contexts", {"language": "bash"}, status=201)
        assert said(await cell(session, "echo quick", context=made["id"])) == "quick\n"
        assert not slow.done()
        assert said(await slow) == "slow\n"
        assert said(await next_one) == "n1\n"

    async def test_a_time_out_interrupts_and_the_state_stays(self, session: SessionApi) -> None:
        await cell(session, "kept=yes")
        ended = await cell(session, "echo begun; sleep 60", timeout_s=0.5)
        assert (ended["reason"], ended["error"]["name"], ended["context_lost"]) == ("timeout", "TimeoutError", None)
        assert "0.5 s" in ended["error"]["value"]
        assert said(ended) == "begun\n"
        assert said(await cell(session, "echo $kept")) == "yes\n"

    async def test_an_interrupt_ends_the_cell_and_nothing_else(self, session: SessionApi) -> None:
        await cell(session, "kept=yes")
        assert (await session.post("/contexts/ctx_bash/interrupt"))["state"] == "idle"
        slow = asyncio.create_task(cell(session, "sleep 60"))
        await until(lambda: is_busy(session))
        await asyncio.sleep(0.2)
        await session.post("/contexts/ctx_bash/interrupt")
        ended = await slow
        assert ended["error"] is not None
        assert ended["reason"] == "exited"
        assert said(await cell(session, "echo $kept")) == "yes\n"
        await session.refused("POST", "/contexts/ctx_r/interrupt", status=404, code="context_not_found")

    async def test_a_restart_empties_the_context(self, session: SessionApi) -> None:
        made = await session.post("/contexts", {"language": "bash", "cwd": "/tmp", "env": {"A": "b"}}, status=201)
        await cell(session, "x=1; cd /", context=made["id"])
        again = await session.post(f"/contexts/{made['id']}/restart")
        assert (again["id"], again["cwd"], again["state"]) == (made["id"], "/tmp", "idle")
        assert said(await cell(session, "echo x$x $A; pwd", context=made["id"])) == "x b\n/tmp\n"

    async def test_a_context_that_was_killed_is_told_once_and_then_fresh(self, session: SessionApi) -> None:
        await cell(session, "x=1")
        await session.post("/processes/ctx_bash/kill", {"grace_s": 0})
        assert (await contexts(session))["ctx_bash"]["state"] == "lost"
        problem = await session.refused(
            "POST", "/code", {"code": "echo", "language": "bash"}, status=409, code="context_lost"
        )
        assert "ctx_bash" in problem["detail"]
        assert said(await cell(session, "echo x$x")) == "x\n"

    async def test_a_named_context_that_was_killed_stays_lost(self, session: SessionApi) -> None:
        made = await session.post("/contexts", {"language": "bash"}, status=201)
        await session.post(f"/processes/{made['id']}/kill", {"grace_s": 0})
        for _ in range(2):
            body = {"code": "echo", "context": made["id"]}
            await session.refused("POST", "/code", body, status=409, code="context_lost")
        assert (await contexts(session))[made["id"]]["lost_reason"] == "killed"
        await session.post(f"/contexts/{made['id']}/restart")
        assert said(await cell(session, "echo back", context=made["id"])) == "back\n"

    async def test_a_context_that_dies_under_a_cell_gives_what_came_before(self, session: SessionApi) -> None:
        slow = asyncio.create_task(cell(session, "echo before; sleep 60"))
        await until(lambda: is_busy(session))
        await asyncio.sleep(0.2)
        await session.post("/processes/ctx_bash/kill", {"grace_s": 0})
        ended = await slow
        assert (ended["reason"], ended["context_lost"], said(ended)) == ("context_lost", "killed", "before\n")
        assert ended["error"]["name"] == "ContextLost"
        assert said(await cell(session, "echo fresh")) == "fresh\n"

    async def test_kill_all_ends_contexts_too(self, session: SessionApi) -> None:
        await cell(session, "true")
        await session.post("/kill-all")
        await session.refused("POST", "/code", {"code": "", "language": "bash"}, status=409, code="context_lost")
        assert said(await cell(session, "echo fresh")) == "fresh\n"

    async def test_a_key_runs_a_cell_once(self, session: SessionApi) -> None:
        headers = {"Idempotency-Key": "cell-1"}
        body = "echo x >> counted; cat counted; echo ümlaut"
        first = await cell(session, body, headers=headers)
        await session.post("/contexts/ctx_bash/restart")  # another keeper: the answer stays the same
        again = await cell(session, body, headers=headers)
        assert again == first
        assert said(first) == "x\nümlaut\n"
        other = {"code": "echo other", "language": "bash"}
        await session.refused("POST", "/code", other, headers=headers, status=422, code="idempotency_key_reused")

    async def test_a_client_that_vanishes_interrupts_its_cell(self, session: SessionApi) -> None:
        await cell(session, "kept=yes")
        await cut_off(asyncio.ensure_future(cell(session, "sleep 60")), 0.6)
        await until(lambda: _is_idle(session))
        assert said(await cell(session, "echo $kept")) == "yes\n"

    async def test_a_cell_that_runs_can_be_read_from_its_beginning(self, session: SessionApi) -> None:
        async with session.events("POST", "/code", {"code": "echo one; sleep 1; echo two", "language": "bash"}) as mine:
            started = await anext(mine)
            await anext(mine)
            so_far = await session.get(f"/code/{started.data['id']}")
            assert (so_far["reason"], said(so_far), so_far["context_id"]) == ("running", "one\n", "ctx_bash")
            async with session.events("GET", f"/code/{started.data['id']}") as again:
                seen = [event async for event in again]
            text = "".join(event.data["text"] for event in seen if event.kind == "stdout")
            assert (text, seen[0].kind, seen[-1].kind) == ("one\ntwo\n", "started", "end")
            assert [event.kind async for event in mine][-1] == "end"
        await session.refused("GET", f"/code/{started.data['id']}", status=404, code="process_not_found")
        await session.refused("GET", "/code/ctx_bash", status=404, code="process_not_found")

    async def test_no_more_contexts_than_are_allowed(self, session: SessionApi) -> None:
        for _ in range(16):
            await session.post("/contexts", {"language": "bash"}, status=201)
        await session.refused("POST", "/contexts", {"language": "bash"}, status=429, code="limit_reached")
        await session.refused("POST", "/code", {"code": "", "language": "bash"}, status=429, code="limit_reached")

    async def test_two_clients_share_a_context(self, session: SessionApi, url: str) -> None:
        async with Api(url) as other:
            both = SessionApi(other, session.found)
            cells = [cell(who, "echo x >> log") for who in (session, both) for _ in range(5)]
            counts = [found["execution_count"] for found in await asyncio.gather(*cells)]
        assert sorted(counts) == list(range(1, 11))
        assert await session.output("cat log") == "x\n" * 10

    async def test_a_language_that_the_image_lacks_is_named(self, session: SessionApi) -> None:
        body = {"code": "1", "language": "R"}
        problem = await session.refused("POST", "/code", body, status=422, code="language_missing")
        assert "Rscript" in problem["detail"]
        assert "code in r" in problem["detail"]
        assert await contexts(session) == {}


async def _is_idle(session: SessionApi) -> bool:
    return not await is_busy(session)


async def python(session: SessionApi, code: str, **rest: Any) -> dict[str, Any]:
    return await cell(session, code, language="python", **rest)


def shown(execution: dict[str, Any]) -> str | None:
    """The text of the main result."""
    found = [result["text"] for result in execution["results"] if result["is_main_result"]]
    return found[0] if found else None


@pytest.mark.anyio
class LinuxCodeSuite:
    async def test_values_errors_and_output_of_python(self, session: SessionApi) -> None:
        assert shown(await python(session, "x = 6\nprint('hi')\nx * 7")) == "42"
        failed = await python(session, "1/0")
        assert (failed["error"]["name"], failed["error"]["value"]) == ("ZeroDivisionError", "division by zero")
        assert "ZeroDivisionError" in failed["error"]["traceback"]
        assert shown(await python(session, "x")) == "6"
        (found,) = (await contexts(session)).values()
        assert (found["id"], found["language"], found["default"]) == ("ctx_python", "python", True)
        assert found["version"].startswith("3.")

    async def test_javascript_keeps_its_state_over_a_time_out(self, session: SessionApi) -> None:
        assert shown(await cell(session, "const kept = await 42; kept", language="javascript")) == "42"
        for code in ("while (true) {}", "setTimeout(() => { while (true) {} }); await new Promise(() => {})"):
            ended = await cell(session, code, language="javascript", timeout_s=0.5)
            assert (ended["error"]["name"], ended["context_lost"]) == ("TimeoutError", None)
        ended = await cell(session, "console.log(kept); process.exit(3)", language="javascript")
        assert (said(ended), ended["context_lost"]) == ("42\n", "exited")

    async def test_bash_survives_what_ends_a_script(self, session: SessionApi) -> None:
        for code in ("kept=yes; set -euo pipefail; false | true", "exit 4", "echo ${missing:?}", "echo 'no end"):
            ended = await cell(session, code)
            assert (ended["error"] is None, ended["context_lost"]) == (False, None)
        assert said(await cell(session, "echo $kept")) == "yes\n"

    async def test_a_cell_that_ignores_its_interrupt_ends_with_its_context(self, session: SessionApi) -> None:
        code = (
            "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nprint('on', flush=True)\ntime.sleep(60)"
        )
        ended = await python(session, code, timeout_s=1)
        assert (ended["reason"], ended["error"]["name"], said(ended)) == ("timeout", "TimeoutError", "on\n")
        if ended["context_lost"] is None:  # a runner that can, ends it all the same
            assert shown(await python(session, "1")) == "1"
        else:
            assert ended["context_lost"] == "killed"
            assert shown(await python(session, "2")) == "2"

    async def test_a_cell_that_lets_nobody_answer_its_interrupt_tells_of_the_loss(self, session: SessionApi) -> None:
        """A fork bomb does that by its load; this one stops the keeper, its parent."""
        ended = await python(
            session, "import os, signal\nos.kill(os.getppid(), signal.SIGSTOP)\nwhile True: pass", timeout_s=1
        )
        assert (ended["reason"], ended["context_lost"]) == ("timeout", "killed")
        assert "lost" in ended["error"]["value"]
        assert shown(await python(session, "2", timeout_s=20)) == "2"

    async def test_running_out_of_memory_is_told(self, session: SessionApi) -> None:
        made = await session.post("/contexts", {}, status=201)
        ended = await python(
            session, "print('before', flush=True)\nx = bytearray(4 << 30)\nx[::4096] = x[::4096]", context=made["id"]
        )
        if ended["error"]["name"] != "MemoryError":
            assert (ended["reason"], ended["context_lost"]) == ("context_lost", "oom")
            assert said(ended) == "before\n"
            assert (await contexts(session))[made["id"]]["lost_reason"] == "oom"
            body = {"code": "1", "context": made["id"]}
            problem = await session.refused("POST", "/code", body, status=409, code="context_lost")
            assert "memory" in problem["detail"]
        assert shown(await python(session, "1")) == "1"

    async def test_a_runner_that_was_killed_or_has_exited(self, session: SessionApi) -> None:
        for code, why in (("import os; os.kill(os.getpid(), 9)", "killed"), ("import os; os._exit(3)", "exited")):
            ended = await python(session, f"print('x', flush=True); {code}")
            assert (ended["reason"], ended["context_lost"], said(ended)) == ("context_lost", why, "x\n")
            assert shown(await python(session, "1")) == "1"

    async def test_a_full_disk_is_an_error_of_the_code(self, session: SessionApi) -> None:
        code = "with open('/workspace/full', 'wb') as file:\n    while True: file.write(bytes(1 << 20))"
        ended = await python(session, code, timeout_s=60)
        assert ended["error"]["name"] == "OSError", ended["error"]
        assert shown(await python(session, "import os; os.remove('/workspace/full'); 5")) == "5"
        assert await session.output("echo fine") == "fine\n"

    async def test_much_output_is_cut_and_told(self, session: SessionApi) -> None:
        ended = await python(session, "print('x' * 20_000_000); 'end'", timeout_s=60)
        assert (ended["reason"], ended["truncated"], shown(ended)) == ("exited", True, "'end'")
        size = sum(map(len, ended["logs"]["stdout"]))
        assert 8_000_000 < size < 13_000_000
        assert size + ended["dropped"]["text"] >= 20_000_000

    async def test_what_a_cell_forges_harms_nothing_else(self, session: SessionApi) -> None:
        forged = (
            "import os\n"
            "for fd in range(3, 20):\n"
            "    for body in (b'[' * 100_000, b'{\"type\": \"result\", \"text\": 5}', b'NaN'):\n"
            "        try: os.write(fd, b'r' + len(body).to_bytes(4, 'big') + body)\n"
            "        except OSError: pass\n"
            "'survived'"
        )
        ended = await python(session, forged, timeout_s=20)
        assert ended["reason"] in ("exited", "context_lost")
        assert shown(await python(session, "7")) == "7"

    async def test_frames_without_end_do_not_put_off_the_time_out(self, session: SessionApi) -> None:
        flood = (
            "import os, signal\n"
            "signal.signal(signal.SIGINT, signal.SIG_DFL)\n"
            "for fd in range(3, 1024):\n"
            "    try: os.write(fd, b'r\\0\\0\\0\\2{}')\n"
            "    except OSError: continue\n"
            "    while True: os.write(fd, b'r\\0\\0\\0\\2{}' * 4096)"
        )
        begun = time.monotonic()
        ended = await python(session, flood, timeout_s=1)
        assert (ended["reason"], ended["truncated"], ended["results"]) == ("timeout", True, [])
        assert ended["dropped"]["events"] > 1000
        assert time.monotonic() - begun < patience(5)
        assert shown(await python(session, "7")) == "7"

    async def test_an_idle_context_ends(self, session: SessionApi) -> None:
        made = await session.post("/contexts", {"language": "bash", "idle_timeout_s": 1}, status=201)

        async def is_lost() -> bool:
            return (await contexts(session))[made["id"]]["state"] == "lost"

        await until(is_lost)
        assert (await contexts(session))[made["id"]]["lost_reason"] == "exited"
        body = {"code": "true", "context": made["id"]}
        await session.refused("POST", "/code", body, status=409, code="context_lost")

    async def test_a_context_is_made_ahead_in_sandboxes_of_the_pool(self, api: Api) -> None:
        async with api.session(environment="Python3") as session:
            (found,) = (await contexts(session)).values()
            assert (found["id"], found["state"]) == ("ctx_python", "idle")
            assert shown(await python(session, "6 * 7")) == "42"

    async def test_variables_of_the_session_reach_a_context_of_the_pool(self, api: Api) -> None:
        async with api.session(environment="Python3", env={"FROM": "session"}) as session:
            assert shown(await python(session, "import os; os.environ['FROM']")) == "'session'"
