"""Idempotency keys: the same key gives the same answer, and what it stands for happens once."""

import asyncio
import secrets
from typing import Any

import pytest
from e2e.api_client import Api, SessionApi, until


def key() -> dict[str, str]:
    return {"Idempotency-Key": f"k-{secrets.token_hex(8)}"}


async def cut_off(request_context: "asyncio.Future[Any]", after_s: float) -> None:
    """The client goes away."""
    await asyncio.sleep(after_s)
    assert not request_context.done()
    request_context.cancel()
    await asyncio.gather(request_context, return_exceptions=True)


@pytest.mark.anyio
class OnceSuite:
    async def test_a_create_with_the_same_key_is_the_same_session(self, api: Api) -> None:
        headers, body = key(), {"metadata": {"a": "b"}}
        first = await api.post("/api/sessions", body, status=201, headers=headers)
        async with api.ask("POST", "/api/sessions", body, headers=headers) as answer:
            again = await answer.json()
            assert answer.status == 201
            assert answer.headers["Idempotency-Replayed"] == "true"
        assert again["session_id"] == first["session_id"]
        await api.call("DELETE", f"/api/sessions/{first['session_id']}")

    async def test_a_create_with_the_same_key_runs_its_command_once(self, api: Api) -> None:
        headers, body = key(), {"exec": {"command": "echo x >> runs; cat runs"}}
        first = await api.post("/api/sessions", body, status=201, headers=headers)
        again = await api.post("/api/sessions", body, status=201, headers=headers)
        assert (first["exec"]["result"]["stdout"], again["exec"]) == ("x\n", first["exec"])
        await api.call("DELETE", f"/api/sessions/{first['session_id']}")

    async def test_a_create_with_a_used_key_and_another_body_is_refused(self, api: Api) -> None:
        headers = key()
        first = await api.post("/api/sessions", {"metadata": {"a": "b"}}, status=201, headers=headers)
        for other in ({"metadata": {"a": "c"}}, {}, {"metadata": {"a": "b"}, "thread_id": "x"}):
            await api.refused(
                "POST", "/api/sessions", other, status=422, code="idempotency_key_reused", headers=headers
            )
        await api.call("DELETE", f"/api/sessions/{first['session_id']}")

    async def test_parallel_creates_with_one_key_make_one_session(self, api: Api) -> None:
        headers = key()
        label = headers["Idempotency-Key"]
        body = {"metadata": {"label": label}}
        calls = (api.post("/api/sessions", body, status=201, headers=headers) for _ in range(30))
        found = await asyncio.gather(*calls)
        assert len({one["session_id"] for one in found}) == 1
        page = await api.get("/api/sessions", metadata=f"label={label}", state=["creating", "running", "ended"])
        assert len(page["sessions"]) == 1
        await api.call("DELETE", f"/api/sessions/{found[0]['session_id']}")

    async def test_the_key_of_a_create_that_failed_may_be_used_again(self, api: Api) -> None:
        headers = key()
        await api.refused("POST", "/api/sessions", {"environment": "moon"}, status=422, code="unknown_environment",
                          headers=headers)  # fmt: skip
        wanted = {"require": ["guest_kernel"]}
        await api.refused("POST", "/api/sessions", wanted, status=503, code="isolation_unavailable", headers=headers)
        found = await api.post("/api/sessions", {}, status=201, headers=headers)
        await api.call("DELETE", f"/api/sessions/{found['session_id']}")

    async def test_the_flat_create_keeps_keys_too(self, api: Api) -> None:
        headers = key()
        first = await api.post("/create_session", headers=headers)
        assert await api.post("/create_session", headers=headers) == first
        await api.post("/cleanup", {"session_id": first["session_id"]})

    async def test_a_command_with_the_same_key_runs_once(self, session: SessionApi) -> None:
        headers = key()
        first = await session.exec("echo run >> count; echo out; echo err >&2; exit 3", headers=headers)
        assert (first["exit_code"], first["stdout"], first["stderr"]) == (3, "out\n", "err\n")
        again = await session.exec("echo run >> count; echo out; echo err >&2; exit 3", headers=headers)
        assert again == first
        assert await session.output("cat count") == "run\n"

    async def test_parallel_commands_with_one_key_run_once(self, session: SessionApi) -> None:
        headers = key()
        line = "echo run >> count; sleep 0.3; cat count"
        found = await asyncio.gather(*(session.exec(line, headers=headers) for _ in range(20)))
        assert all(one == found[0] for one in found)
        assert found[0]["output"] == "run\n"
        assert await session.output("cat count") == "run\n"

    async def test_a_command_with_a_used_key_and_another_body_is_refused(self, session: SessionApi) -> None:
        headers = key()
        await session.exec("echo run >> count", headers=headers, stdin="x")
        for other in (
            {"command": "echo walk >> count", "stdin": "x"},
            {"command": "echo run >> count"},
            {"command": "echo run >> count", "stdin": "x", "cwd": "/tmp"},
        ):
            await session.refused("POST", "/exec", other, status=422, code="idempotency_key_reused", headers=headers)
        assert await session.output("cat count") == "run\n"

    async def test_a_key_belongs_to_its_session(self, api: Api) -> None:
        headers = key()
        async with api.session() as first, api.session() as second:
            for session in (first, second):
                await session.exec("echo run >> count", headers=headers)
                assert await session.output("cat count") == "run\n"

    async def test_a_caller_with_a_key_may_go_away_and_come_back(self, session: SessionApi) -> None:
        headers = key()
        line = "echo begun >> count; sleep 1.5; echo done >> count; cat count"
        request_context = asyncio.ensure_future(session.exec(line, headers=headers))
        await cut_off(request_context, 0.7)
        result = await session.exec(line, headers=headers)
        assert (result["exit_code"], result["reason"]) == (0, "exited")
        assert result["output"] == "begun\ndone\n"

    async def test_a_command_with_a_key_goes_on_when_nobody_comes_back(self, session: SessionApi) -> None:
        request_context = asyncio.ensure_future(session.exec("sleep 1; echo done > late", headers=key()))
        await cut_off(request_context, 0.5)

        async def written() -> bool:
            return bool((await session.exec("cat late"))["output"] == "done\n")

        await until(written)

    async def test_input_comes_along_with_a_key(self, session: SessionApi) -> None:
        headers = key()
        first = await session.exec("cat", stdin="wörds", headers=headers)
        assert first["output"] == "wörds"
        assert await session.exec("cat", stdin="wörds", headers=headers) == first
        body = {"command": "cat", "stdin": "x" * 100_000}
        await session.refused("POST", "/exec", body, status=422, code="invalid_request", headers=key())

    async def test_long_output_is_the_same_again(self, session: SessionApi) -> None:
        headers = key()
        first = await session.exec("head -c 2000000 /dev/zero", headers=headers)
        assert first["bytes_total"] == 2_000_000
        assert await session.exec("head -c 2000000 /dev/zero", headers=headers) == first

    async def test_a_stream_takes_no_key(self, session: SessionApi) -> None:
        body = {"command": "true", "stream": True}
        await session.refused("POST", "/exec", body, status=422, code="invalid_request", headers=key())

    async def test_the_flat_execute_keeps_keys_too(self, session: SessionApi, api: Api) -> None:
        headers, body = key(), {"session_id": session.id, "command": "echo run >> count; cat count"}
        first = await api.post("/execute", body, headers=headers)
        assert await api.post("/execute", body, headers=headers) == first
        assert first["output"] == "run\n"

    @pytest.mark.parametrize("bad", ["é" * 3, "x" * 256, "tab\tbed"])
    async def test_a_key_that_cannot_be_is_refused(self, session: SessionApi, bad: str) -> None:
        headers = {"Idempotency-Key": bad}
        await session.refused("POST", "/exec", {"command": "true"}, status=422, code="invalid_request", headers=headers)
