"""The flat endpoints, with the fields their first clients know; and code and files the E2B way."""

import asyncio
import secrets
from typing import Any

import aiohttp
import pytest
from e2e.api_client import COMMENT, Api, SessionApi, until
from e2e.hosts import Hosts
from e2e.once_suite import cut_off
from e2e.session_suite import unique


def form(*fields: tuple[str, str | bytes], filename: str = "file.txt") -> bytes:
    """A multipart form with its fields in this order; bytes are the file."""
    made = []
    for name, value in fields:
        head = f'Content-Disposition: form-data; name="{name}"'
        if isinstance(value, bytes):
            head += f'; filename="{filename}"\r\nContent-Type: application/octet-stream'
        content = value if isinstance(value, bytes) else value.encode()
        made.append(b"--frontier\r\n" + head.encode() + b"\r\n\r\n" + content + b"\r\n")
    return b"".join((*made, b"--frontier--\r\n"))


FORM = {"Content-Type": "multipart/form-data; boundary=frontier"}


@pytest.mark.anyio
class FlatSuite:
    async def test_the_way_of_a_first_client(self, api: Api, hosts: Hosts) -> None:
        created = await api.post("/create_session")
        assert created["status"] == "created"
        assert (created["user"], created["workspace"]) == ("sandboxuser", "/workspace")
        assert created["worker"].startswith("http://")
        session_id = created["session_id"]
        result = await api.post("/execute", {"session_id": session_id, "command": "echo Hello"})
        assert (result["exit_code"], result["output"]) == (0, "Hello\n")
        sandbox_id = (await api.get(f"/api/sessions/{session_id}"))["sandbox_id"]
        assert await api.post("/cleanup", {"session_id": session_id}) == {"status": "cleaned up"}
        assert not hosts.has(sandbox_id)

    async def test_cleaning_up_again_or_what_never_was_is_fine(self, api: Api) -> None:
        created = await api.post("/create_session", {"thread_id": unique()})
        for _ in range(3):
            assert await api.post("/cleanup", {"session_id": created["session_id"]}) == {"status": "cleaned up"}
        for never in ({"session_id": "abc-123"}, {"thread_id": unique()}, {"thread_id": created["thread_id"]}):
            assert await api.post("/cleanup", never) == {"status": "cleaned up"}
        await api.refused("POST", "/cleanup", {}, status=422, code="invalid_request")

    async def test_a_thread_gets_the_session_it_has(self, api: Api) -> None:
        thread = unique()
        first = await api.post("/create_session", {"thread_id": thread})
        again = await api.post("/create_session", {"thread_id": thread})
        assert (first["status"], again["status"]) == ("created", "existing")
        assert first["session_id"] == again["session_id"]
        await api.post("/cleanup", {"thread_id": thread})

    async def test_a_command_gives_a_thread_its_session(self, api: Api) -> None:
        thread = unique()
        body = {"thread_id": thread, "command": "echo run >> count; cat count"}
        found = await asyncio.gather(*(api.post("/execute", body) for _ in range(20)))
        assert len({one["session_id"] for one in found}) == 1
        last = await api.post("/execute", body)
        assert last["output"] == "run\n" * 21
        await api.post("/cleanup", {"thread_id": thread})

    async def test_the_fuller_result_comes_along(self, session: SessionApi, api: Api) -> None:
        body = {"session_id": session.id, "command": "echo out; echo err >&2; exit 3", "timeout": 30}
        result = await api.post("/execute", body)
        assert (result["exit_code"], result["stdout"], result["stderr"]) == (3, "out\n", "err\n")
        assert (result["reason"], result["truncated"], result["bytes_total"]) == ("exited", False, 8)
        assert (result["session_id"], result["notice"]) == (session.id, None)

    async def test_a_time_out_is_a_result(self, session: SessionApi, api: Api) -> None:
        body = {"session_id": session.id, "command": "sleep 100", "timeout": 0.5}
        result = await api.post("/execute", body)
        assert result["reason"] == "timeout"

    async def test_a_command_as_a_stream(self, api: Api) -> None:
        which = {"thread_id": unique()}
        body = {**which, "command": "echo first; sleep 0.2; echo last >&2; exit 3", "timeout": 30}
        keyed = {"Idempotency-Key": unique()}
        for wrong, headers in (({"stream": True}, keyed), ({"command": "", "stream": True}, {})):
            told = {**body, **wrong}
            await api.refused("POST", "/execute", told, status=422, code="invalid_request", headers=headers)
        assert (await api.get("/api/sessions", **which))["sessions"] == []
        async with api.events("POST", "/execute", body) as events:
            seen = [event async for event in events if event.kind != COMMENT]
        assert [event.kind for event in seen] == ["started", "output", "output", "result"]
        shown = [(event.data["stream"], event.data["data"]) for event in seen[1:3]]
        assert shown == [("stdout", "first\n"), ("stderr", "last\n")]
        result = seen[-1].data
        assert (result["exit_code"], result["reason"], result["notice"]) == (3, "exited", None)
        (session,) = (await api.get("/api/sessions", **which))["sessions"]
        assert result["session_id"] == session["session_id"]
        asked = {**which, "command": r"printf 'a\xff'", "stream": True}
        async with api.ask("POST", "/execute", asked, encoding="base64") as answer:
            assert answer.content_type == "text/event-stream"
            assert b'"data": "Yf8="' in await answer.read()
        await api.post("/cleanup", which)
        ended = {"session_id": session["session_id"], "command": "true", "stream": True}
        await api.refused("POST", "/execute", ended, status=410, code="session_ended")

    async def test_output_of_execute_comes_while_the_command_runs(self, session: SessionApi, api: Api) -> None:
        body = {"session_id": session.id, "command": "echo first; sleep 1007", "stream": True}
        async with api.events("POST", "/execute", body) as events:
            kinds = [(await anext(events)).kind for _ in range(2)]
        assert kinds == ["started", "output"]

    async def test_a_session_must_be_named_once(self, session: SessionApi, api: Api) -> None:
        for which in ({}, {"session_id": session.id, "thread_id": unique()}):
            await api.refused("POST", "/execute", {"command": "true", **which}, status=422, code="invalid_request")
        never = {"session_id": "abc-123", "command": "true"}
        await api.refused("POST", "/execute", never, status=404, code="session_not_found")
        await api.refused("GET", "/list_files", thread_id=unique(), status=404, code="session_not_found")

    async def test_what_cannot_run_makes_no_session(self, api: Api) -> None:
        thread = unique()
        for bad in ({"command": ""}, {"command": "true", "timeout": -1}, {"command": 7}):
            await api.refused("POST", "/execute", {"thread_id": thread, **bad}, status=422, code="invalid_request")
        assert (await api.get("/api/sessions", thread_id=thread))["sessions"] == []

    async def test_a_file_is_uploaded_listed_and_downloaded(self, session: SessionApi, api: Api) -> None:
        data = form(("session_id", session.id), ("file", b"\x00content\xff"))
        found = await api.post("/upload_file", data=data, headers=FORM)
        assert found["status"] == "uploaded"
        assert (found["filename"], found["path"]) == ("file.txt", "/workspace/file.txt")
        listed = await api.get("/list_files", session_id=session.id)
        assert [one["name"] for one in listed["files"]] == ["file.txt"]
        for name in ({"path": "file.txt"}, {"filename": "file.txt"}, {"path": "/workspace/file.txt"}):
            assert await api.get("/download_file", session_id=session.id, **name) == b"\x00content\xff"

    async def test_the_file_may_come_before_the_session_id(self, session: SessionApi, api: Api) -> None:
        data = form(("file", b"early"), ("session_id", session.id))
        assert (await api.post("/upload_file", data=data, headers=FORM))["status"] == "uploaded"
        assert await session.read("file.txt") == b"early"
        late = form(("file", b"x" * (9 << 20)), ("session_id", session.id))
        refused = await api.refused("POST", "/upload_file", data=late, headers=FORM, status=413, code="too_large")
        assert "before the file" in refused["remedy"]

    async def test_a_large_file_is_uploaded_after_the_session_id(self, session: SessionApi, api: Api) -> None:
        content = secrets.token_bytes(1 << 20) * 12
        data = form(("session_id", session.id), ("path", "deep/large"), ("file", content))
        assert (await api.post("/upload_file", data=data, headers=FORM))["path"] == "/workspace/deep/large"
        assert await api.get("/download_file", session_id=session.id, path="deep/large") == content

    async def test_an_upload_as_a_library_sends_it(self, session: SessionApi, api: Api) -> None:
        data = aiohttp.FormData()
        data.add_field("session_id", session.id)
        data.add_field("file", b"print('hi')", filename="ščript one.py", content_type="text/x-python")
        found = await api.post("/upload_file", data=data)
        assert found["size"] == 11
        assert [one["name"] for one in (await session.get("/files"))["files"]] == [found["filename"]]

    async def test_an_upload_to_a_thread_makes_its_session(self, api: Api) -> None:
        thread = unique()
        await api.post("/upload_file", data=form(("thread_id", thread), ("file", b"x")), headers=FORM)
        assert await api.get("/download_file", thread_id=thread, path="file.txt") == b"x"
        assert [one["name"] for one in (await api.get("/list_files", thread_id=thread))["files"]] == ["file.txt"]
        await api.post("/cleanup", {"thread_id": thread})

    @pytest.mark.parametrize("filename", ["../../etc/passwd", "/etc/passwd", "c:\\temp\\passwd", "passwd"])
    async def test_a_files_own_name_leads_nowhere_else(self, session: SessionApi, api: Api, filename: str) -> None:
        data = form(("session_id", session.id), ("file", b"x"), filename=filename)
        assert (await api.post("/upload_file", data=data, headers=FORM))["path"] == "/workspace/passwd"

    async def test_a_form_that_is_not_right_is_refused(self, session: SessionApi, api: Api) -> None:
        for data in (
            form(("session_id", session.id)),
            form(("file", b"x")),
            form(("session_id", session.id), ("file", b"x"), ("file", b"y")),
            form(("session_id", session.id), ("file", b"x"), filename=""),
            b"no form at all",
            b"",
        ):
            await api.refused("POST", "/upload_file", data=data, headers=FORM, status=422, code="invalid_request")

    async def test_a_file_that_is_not_there_is_not_found(self, session: SessionApi, api: Api) -> None:
        which: dict[str, Any] = {"session_id": session.id, "path": "none"}
        await api.refused("GET", "/download_file", **which, status=404, code="file_not_found")
        await api.refused("GET", "/list_files", **which, status=404, code="file_not_found")

    async def test_sessions_are_listed(self, session: SessionApi, api: Api) -> None:
        found = await api.get("/sessions")
        assert found["count"] == len(found["sessions"])
        assert session.id in {one["session_id"] for one in found["sessions"]}


@pytest.mark.anyio
class E2bSuite:
    """It needs a real Python inside."""

    async def test_code_runs_and_gives_its_value_and_its_files(self, api: Api) -> None:
        async with api.session(environment="Python3") as session:
            code = "print('out')\nopen('made.txt', 'w').write('x')\n6 * 7"
            found = await api.post("/api/e2b/execute", {"session_id": session.id, "code": code})
            assert (found["stdout"], found["stderr"], found["exit_code"]) == ("out\n", "", 0)
            assert [(one["text"], one["is_main_result"]) for one in found["results"]] == [("42", True)]
            (made,) = found["artifacts"]
            assert (made["path"], made["size"]) == ("/workspace/made.txt", 1)
            assert made["url"] == f"{api.url}/api/sessions/{session.id}/files/content?path=/workspace/made.txt"
            assert await api.get(made["url"].removeprefix(api.url)) == b"x"
            assert (found["error"], found["execution_count"], found["reason"]) == (None, 1, "exited")
            assert (found["context_id"], found["session_id"]) == ("ctx_python", session.id)

    async def test_code_that_fails_says_where_and_leaves_the_rest(self, session: SessionApi, api: Api) -> None:
        found = await api.post("/api/e2b/execute", {"session_id": session.id, "code": "x = 41\n1 / 0"})
        assert (found["exit_code"], found["reason"]) == (1, "exited")
        assert (found["error"]["name"], found["error"]["value"]) == ("ZeroDivisionError", "division by zero")
        for text in (found["stderr"], found["error"]["traceback"]):
            assert "ZeroDivisionError" in text
            assert "line 2" in text
        body = {"session_id": session.id, "code": "while True: pass", "timeout": 1}
        slow = await api.post("/api/e2b/execute", body)
        assert (slow["reason"], slow["exit_code"], slow["error"]["name"]) == ("timeout", 1, "TimeoutError")
        assert "TimeoutError" in slow["stderr"]
        body = {"session_id": session.id, "code": "echo said >&2; exit 3", "language": "bash"}
        shell = await api.post("/api/e2b/execute", body)
        assert (shell["exit_code"], shell["stderr"], shell["reason"]) == (3, "said\n", "exited")
        body = {"session_id": session.id, "code": "import os; os.environ['A'] + str(x + 1)", "envs": {"A": "a"}}
        assert (await api.post("/api/e2b/execute", body))["results"][0]["text"] == "'a42'"

    async def test_a_client_that_goes_away_ends_its_code(self, session: SessionApi, api: Api) -> None:
        body = {"session_id": session.id, "code": "kept = 1\nimport time; time.sleep(1004)"}
        await cut_off(asyncio.ensure_future(api.post("/api/e2b/execute", body)), 3.0)

        async def is_idle() -> bool:
            return [one["state"] for one in (await session.get("/contexts"))["contexts"]] == ["idle"]

        await until(is_idle)
        body = {"session_id": session.id, "code": "kept"}
        assert (await api.post("/api/e2b/execute", body))["results"][0]["text"] == "1"

    async def test_code_as_a_stream(self, session: SessionApi, api: Api) -> None:
        code = "print('out')\nopen('streamed', 'w').close()\n6 * 7"
        body = {"session_id": session.id, "code": code, "stream": True}
        async with api.events("POST", "/api/e2b/execute", body) as events:
            seen = [event async for event in events]
        kinds = dict.fromkeys(event.kind for event in seen if event.kind != COMMENT)
        assert list(kinds) == ["started", "stdout", "result", "artifact", "end"]
        by_kind = {event.kind: event.data for event in seen}
        assert "".join(event.data["text"] for event in seen if event.kind == "stdout") == "out\n"
        assert by_kind["artifact"]["url"].endswith("?path=/workspace/streamed")
        assert (by_kind["end"]["exit_code"], by_kind["end"]["session_id"]) == (0, session.id)
        await api.refused(
            "POST", "/api/e2b/execute", body, status=422, code="invalid_request", headers={"Idempotency-Key": unique()}
        )

    async def test_code_of_a_thread(self, api: Api) -> None:
        which = {"thread_id": unique()}
        for wrong in ({"language": "cobol"}, {"envs": {"=": ""}}, {"timeout": 1e6}, {"context_id": "ctx_x"}):
            body = {**which, "code": "1", **wrong}
            async with api.ask("POST", "/api/e2b/execute", body) as answer:
                assert answer.status in (404, 422)
        assert (await api.get("/api/sessions", **which))["sessions"] == []
        first = await api.post("/api/e2b/execute", {**which, "code": "x = 1"})
        second = await api.post("/api/e2b/execute", {**which, "code": "x + 1"})
        assert first["session_id"] == second["session_id"]
        assert (second["results"][0]["text"], second["notice"]) == ("2", None)
        await api.post("/cleanup", which)

    async def test_code_with_a_key_runs_once_and_gives_the_same_answer(self, session: SessionApi, api: Api) -> None:
        code = "file = open('count', 'a+')\nfile.write('x')\nprint(file.seek(0) or file.read())\n6 * 7"
        body, key = {"session_id": session.id, "code": code}, {"Idempotency-Key": unique()}
        first, meanwhile = await asyncio.gather(
            *(api.post("/api/e2b/execute", body, headers=key) for _ in range(2)),
        )
        assert (first["stdout"], first["results"][0]["text"]) == ("x\n", "42")
        assert [one["path"] for one in first["artifacts"]] == ["/workspace/count"]
        assert first == meanwhile == await api.post("/api/e2b/execute", body, headers=key)
        await api.refused(
            "POST",
            "/api/e2b/execute",
            {**body, "code": "1"},
            status=422,
            code="idempotency_key_reused",
            headers=key,
        )
        assert (await api.post("/api/e2b/execute", body))["stdout"] == "xx\n"

    async def test_a_session_is_not_ended_for_a_sandbox_it_does_not_have(self, session: SessionApi, api: Api) -> None:
        place = f"/api/sessions/{session.id}"
        await api.refused("DELETE", f"{place}?sandbox_id=xyz", status=409, code="conflict")
        shown = await api.get(place)
        assert shown["state"] == "running"
        ended = await api.call("DELETE", f"{place}?sandbox_id={shown['sandbox_id']}")
        assert ended["state"] in ("stopping", "ended")

    async def test_files_the_e2b_way(self, session: SessionApi, api: Api) -> None:
        body = {"session_id": session.id, "path": "notes/a.txt", "content": "žluť"}
        await api.post("/api/e2b/files", body, status=201)
        found = await api.get(f"/api/e2b/files/{session.id}")
        assert "/workspace/notes/a.txt" in [one["path"] for one in found["files"]]
        assert await api.get(f"/api/e2b/files/{session.id}", path="notes/a.txt") == "žluť".encode()
        which = {"session_id": session.id}
        assert await api.get("/api/e2b/files", **which) == found
        assert await api.get("/api/e2b/files", **which, path="notes/a.txt") == "žluť".encode()
        written = {"path": "notes/b.bin", "content_base64": "//4="}
        assert (await api.post(f"/api/e2b/files/{session.id}", written, status=201))["size"] == 2
        await api.call("DELETE", "/api/e2b/files", status=204, **which, path="notes/a.txt")
        await api.refused(
            "DELETE", f"/api/e2b/files/{session.id}", path="notes/a.txt", status=404, code="file_not_found"
        )
        await api.call("DELETE", f"/api/e2b/files/{session.id}", status=204, path="notes", recursive="true")
        assert (await api.get("/api/e2b/files", **which))["files"] == []

    async def test_files_of_a_thread_the_e2b_way(self, api: Api) -> None:
        which = {"thread_id": unique()}
        await api.refused("GET", "/api/e2b/files", **which, status=404, code="session_not_found")
        await api.refused("DELETE", "/api/e2b/files", **which, path="a", status=404, code="session_not_found")
        await api.refused("POST", "/api/e2b/files", {**which, "path": ""}, status=422, code="invalid_path")
        assert (await api.get("/api/sessions", **which))["sessions"] == []
        await api.post("/api/e2b/files", {**which, "path": "a", "content": "1"}, status=201)
        assert await api.get("/api/e2b/files", **which, path="a") == b"1"
        await api.call("DELETE", "/api/e2b/files", status=204, **which, path="a")
        assert (await api.get("/api/e2b/files", **which))["files"] == []
        await api.post("/cleanup", which)
