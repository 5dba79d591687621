"""Sessions over HTTP: made, found by their thread, listed, shown, changed, deleted."""

import asyncio
import json
import re
import secrets
import socket
from typing import Any

import pytest
from e2e.api_client import Api, SessionApi, until
from e2e.hosts import Hosts
from yarl import URL

from warren.model.spec import Layer


def unique() -> str:
    return f"t-{secrets.token_hex(8)}"


@pytest.mark.anyio
class SessionSuite:
    async def test_a_session_is_created_running_and_says_where_it_is(self, api: Api) -> None:
        async with api.ask("POST", "/api/sessions") as answer:
            found = await answer.json()
            assert answer.status == 201
            assert answer.headers["Location"] == found["url"]
        assert re.fullmatch(r"ses_[0-9a-f]{32}", found["session_id"])
        assert found["created"] is True
        assert found["state"] == "running"
        assert found["url"] == f"{api.url}/api/sessions/{found['session_id']}"
        assert (found["user"], found["workspace"]) == ("sandboxuser", "/workspace")
        assert found["thread_id"] is None
        assert found["previous"] is None
        assert found["sandbox_id"]
        assert found["worker"]
        assert found["created_at"] < found["expires_at"]
        await api.call("DELETE", f"/api/sessions/{found['session_id']}")

    async def test_a_create_runs_its_first_command(self, api: Api) -> None:
        thread, body = unique(), {"command": "echo one > note; cat note", "cwd": "/tmp", "env": {"A": "b"}}
        made = await api.post("/api/sessions", {"thread_id": thread, "exec": body}, status=201)
        assert made["exec"]["error"] is None
        result = made["exec"]["result"]
        assert (result["stdout"], result["exit_code"], result["reason"]) == ("one\n", 0, "exited")
        again = await api.post("/api/sessions", {"thread_id": thread, "exec": {"command": ["cat", "/tmp/note"]}})
        assert (again["session_id"], again["exec"]["result"]["stdout"]) == (made["session_id"], "one\n")
        assert "exec" not in await api.get(f"/api/sessions/{made['session_id']}")
        await api.call("DELETE", f"/api/sessions/{made['session_id']}")

    async def test_a_first_command_that_cannot_run_leaves_the_session(self, api: Api) -> None:
        made = await api.post("/api/sessions", {"exec": {"command": "true", "cwd": "/none"}}, status=201)
        assert (made["state"], made["exec"]["result"]) == ("running", None)
        alone = {"command": "true", "cwd": "/none"}
        place = f"/api/sessions/{made['session_id']}"
        refused = await api.refused("POST", f"{place}/exec", alone, status=422, code="invalid_path")
        assert made["exec"]["error"]["code"] == "invalid_path"
        assert made["exec"]["error"]["detail"] == refused["detail"]
        await api.call("DELETE", place)

    async def test_a_first_command_that_makes_no_sense_makes_no_session(self, api: Api) -> None:
        marked = {"metadata": {"marked": unique()}}
        for wrong in ({"command": "true", "stream": True}, {"command": "true", "timeout_s": 1e9}, {"commands": "x"}):
            await api.refused("POST", "/api/sessions", {**marked, "exec": wrong}, status=422, code="invalid_request")
        listed = await api.get(f"/api/sessions?metadata=marked={marked['metadata']['marked']}")
        assert listed["sessions"] == []

    async def test_every_session_has_a_sandbox_of_its_own(self, api: Api) -> None:
        async with api.session() as first, api.session() as second:
            assert first.id != second.id
            assert first.found["sandbox_id"] != second.found["sandbox_id"]
            await first.exec("echo mine > note")
            assert (await second.exec("cat note"))["exit_code"] != 0

    async def test_a_thread_gets_the_session_it_has(self, api: Api) -> None:
        thread = unique()
        async with api.session(thread_id=thread) as session:
            assert session.found["thread_id"] == thread
            again = await api.post("/api/sessions", {"thread_id": thread}, status=200)
            assert again["session_id"] == session.id
            assert again["created"] is False

    async def test_a_thread_asked_for_with_other_wishes_is_told_what_its_session_has(self, api: Api) -> None:
        thread = unique()
        asked = {"thread_id": thread, "environment": "base", "limits": {"memory_mb": 256, "pids": 100}}
        async with api.session(thread_id=thread, environment="host", limits={"memory_mb": 256}) as session:
            pids = session.found["limits"]["pids"]
            differs = {"environment": {"has": "host", "asked": "base"}, "limits.pids": {"has": pids, "asked": 100}}
            for key in ({}, {"Idempotency-Key": unique()}):
                for _ in range(2):
                    refused = await api.refused(
                        "POST", "/api/sessions", asked, headers=key, status=409, code="session_mismatch"
                    )
                    assert refused["mismatch"] == differs
            assert f"'host', 'base' was asked for; limits.pids {pids}, 100 was asked for" in refused["detail"]
            assert "`keep`" in refused["remedy"]
            await api.refused("POST", "/create_session", asked, status=409, code="session_mismatch")
            same = {**asked, "environment": "host", "limits": {"pids": pids}, "provider": session.found["provider"]}
            assert (await api.post("/api/sessions", same, status=200)).get("mismatch") is None
            kept = await api.post("/api/sessions", {**asked, "on_mismatch": "keep"}, status=200)
            assert (kept["session_id"], kept["mismatch"]) == (session.id, differs)
            flat = await api.post("/create_session", {**asked, "on_mismatch": "keep"})
            assert "with environment 'host', 'base' was asked for" in flat["notice"]
            assert (await api.post("/execute", {"thread_id": thread, "command": "true"}))["session_id"] == session.id

    async def test_a_thread_gets_one_new_session_however_many_ask_to_replace_its_own(self, api: Api) -> None:
        thread = unique()
        async with api.session(thread_id=thread, environment="host") as old:
            wanted = {"thread_id": thread, "environment": "base", "on_mismatch": "replace"}
            found = await asyncio.gather(*(create(api, **wanted) for _ in range(10)))
            assert sorted(status for status, _ in found) == [200] * 9 + [201]
            assert len({values["session_id"] for _, values in found}) == 1
            new = found[0][1]
            assert (new["environment"], new["previous"]["session_id"]) == ("base", old.id)
            assert new["previous"]["reason"] == "replaced"
            assert (await old.show())["detail"] == "it had environment 'host', 'base' was asked for"
            unknown = {**wanted, "environment": "host", "provider": "nowhere"}
            await api.refused("POST", "/api/sessions", unknown, status=422, code="invalid_request")
            assert await api.post("/api/sessions", {"thread_id": thread}, status=200)
            await api.call("DELETE", f"/api/sessions/{new['session_id']}")

    async def test_a_hundred_parallel_first_calls_make_one_session(self, api: Api) -> None:
        thread = unique()
        found = await asyncio.gather(*(create(api, thread_id=thread) for _ in range(100)))
        assert sorted(status for status, _ in found) == [200] * 99 + [201]
        assert len({values["session_id"] for _, values in found}) == 1
        assert len({values["sandbox_id"] for _, values in found}) == 1
        page = await api.get("/api/sessions", thread_id=thread)
        assert len(page["sessions"]) == 1
        await api.call("DELETE", f"/api/sessions/{found[0][1]['session_id']}")

    async def test_threads_with_similar_names_are_apart(self, api: Api) -> None:
        thread = unique()
        names = [thread, thread.upper(), f"{thread} ", f"{thread}/1", f"{thread}é", f"{thread}e\u0301"]
        found = [await api.post("/api/sessions", {"thread_id": name}, status=201) for name in names]
        assert len({values["session_id"] for values in found}) == len(names)
        for name, values in zip(names, found, strict=True):
            page = await api.get("/api/sessions", thread_id=name)
            assert [one["session_id"] for one in page["sessions"]] == [values["session_id"]]
            await api.call("DELETE", f"/api/sessions/{values['session_id']}")

    async def test_a_named_environment_is_used_and_an_unknown_one_refused(self, api: Api) -> None:
        async with api.session(environment="host") as session:
            assert session.found["environment"] == "host"
        refused = await api.refused(
            "POST", "/api/sessions", {"environment": "moon"}, status=422, code="unknown_environment"
        )
        assert "moon" in refused["detail"]

    async def test_variables_of_a_session_are_in_its_commands_and_not_in_its_description(self, api: Api) -> None:
        async with api.session(env={"TOKEN": "s3cret", "EMPTY": ""}) as session:
            assert await session.output("printenv TOKEN") == "s3cret\n"
            assert await session.output("export TOKEN=other; printenv TOKEN") == "other\n"
            shown = await session.show()
            assert shown["env_names"] == ["EMPTY", "TOKEN"]
            assert "s3cret" not in str(shown)

    async def test_layers_that_must_be_in_force_are_shown(self, api: Api) -> None:
        async with api.session(require=["seccomp", "memory_limit"]) as session:
            isolation = (await session.show())["isolation"]
            assert {"seccomp", "memory_limit"} <= isolation["in_force"].keys()
            assert isolation["provider"] == session.found["provider"]
            assert isolation["in_force"].keys() | isolation["missing"].keys() <= set(Layer)

    async def test_a_layer_that_cannot_be_had_makes_no_session(self, api: Api) -> None:
        thread = unique()
        wanted = {"require": ["guest_kernel"], "thread_id": thread}
        await api.refused("POST", "/api/sessions", wanted, status=503, code="isolation_unavailable")
        assert (await api.get("/api/sessions", thread_id=thread))["sessions"] == []
        await api.refused("POST", "/api/sessions", {"require": ["luck"]}, status=422, code="invalid_request")

    async def test_looking_shows_the_isolation_and_listing_does_not(self, api: Api, session: SessionApi) -> None:
        assert (await session.show())["isolation"]["in_force"]
        page = await api.get("/api/sessions", limit=1)
        assert page["sessions"][0].get("isolation") is None

    async def test_a_body_of_no_stated_type_is_json(self, api: Api) -> None:
        reader, writer = await asyncio.open_connection(URL(api.url).host, URL(api.url).port)
        writer.write(b'POST /api/sessions HTTP/1.0\r\nContent-Length: 10\r\n\r\n{"nope":1}')
        answer = await reader.read()
        writer.close()
        assert b"`nope` is not known here" in answer

    async def test_a_session_whose_answer_reaches_nobody_ends(self, api: Api) -> None:
        label = unique()
        body = b'{"metadata": {"label": "%s"}}' % label.encode()
        for _ in range(30):
            with socket.create_connection((URL(api.url).host, URL(api.url).port)) as caller:
                # The request and the end of the connection go in one packet.
                caller.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
                caller.sendall(b"POST /api/sessions HTTP/1.0\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        async with api.session():  # made after those

            async def all_ended() -> bool:
                return not await listed(api, metadata=f"label={label}")

            await until(all_ended)

    async def test_more_filters_than_a_session_can_match_are_refused(self, api: Api) -> None:
        filters = [f"n{number}=1" for number in range(1200)]
        await api.refused("GET", "/api/sessions", metadata=filters, status=422, code="invalid_request")

    async def test_the_list_is_newest_first_and_comes_in_pages(self, api: Api) -> None:
        label = unique()
        made = [await api.post("/api/sessions", {"metadata": {"label": label}}, status=201) for _ in range(5)]
        wanted = [one["session_id"] for one in reversed(made)]
        pages: list[list[str]] = []
        after: dict[str, str] = {}
        while True:
            page = await api.get("/api/sessions", metadata=f"label={label}", limit=2, **after)
            pages.append([one["session_id"] for one in page["sessions"]])
            if page["next"] is None:
                break
            after = {"after": page["next"]}
        assert [len(page) for page in pages] == [2, 2, 1]
        assert [session_id for page in pages for session_id in page] == wanted
        for session_id in wanted:
            await api.call("DELETE", f"/api/sessions/{session_id}")

    async def test_the_list_can_be_filtered(self, api: Api) -> None:
        label, thread = unique(), unique()
        async with (
            api.session(metadata={"label": label, "n": "1"}, thread_id=thread) as first,
            api.session(metadata={"label": label, "n": "2"}, environment="host") as second,
        ):
            await second.call("DELETE", "")
            everything: dict[str, Any] = {"metadata": f"label={label}"}
            assert await listed(api, **everything) == [first.id]
            assert await listed(api, **everything, state=["running", "ended"]) == [second.id, first.id]
            assert await listed(api, **everything, state="ended") == [second.id]
            assert await listed(api, **everything, environment="host", state="ended") == [second.id]
            assert await listed(api, metadata=[f"label={label}", "n=1"]) == [first.id]
            assert await listed(api, metadata=[f"label={label}", "n=2"]) == []
            assert await listed(api, thread_id=thread) == [first.id]
            assert await listed(api, thread_id=f"{thread}x") == []

    async def test_keep_alive_moves_the_expiry(self, session: SessionApi) -> None:
        before = (await session.show())["expires_at"]
        await asyncio.sleep(0.1)
        assert (await session.show())["expires_at"] <= before
        assert (await session.post("/keep-alive"))["expires_at"] > before

    async def test_a_patch_merges_metadata_and_changes_time_outs(self, api: Api) -> None:
        async with api.session(metadata={"kept": "1", "changed": "2", "dropped": "3"}) as session:
            wanted = {"metadata": {"changed": "x", "dropped": None, "new": "é"}, "idle_timeout_s": 100}
            found = await session.call("PATCH", "", wanted)
            assert found["metadata"] == {"kept": "1", "changed": "x", "new": "é"}
            assert found["idle_timeout_s"] == 100
            assert found["expires_at"] < session.found["expires_at"]
            assert (await session.call("PATCH", "", {"max_lifetime_s": 50}))["max_lifetime_s"] == 50
            assert (await session.call("PATCH", "", {})) == await without_isolation(session)

    async def test_parallel_patches_lose_nothing(self, session: SessionApi) -> None:
        names = [f"n{number}" for number in range(20)]
        await asyncio.gather(*(session.call("PATCH", "", {"metadata": {name: "1"}}) for name in names))
        assert (await session.show())["metadata"] == dict.fromkeys(names, "1")

    async def test_a_deleted_session_is_gone_and_deleting_it_again_is_fine(self, api: Api, hosts: Hosts) -> None:
        async with api.session() as session:
            ended = await session.call("DELETE", "")
            assert (ended["state"], ended["reason"]) == ("ended", "deleted")
            assert not hosts.has(session.found["sandbox_id"])
            assert await session.call("DELETE", "") == ended
            assert await without_isolation(session) == ended
            for method, place, body in (
                ("POST", "/exec", {"command": "true"}),
                ("GET", "/files", None),
                ("POST", "/keep-alive", None),
                ("PATCH", "", {"idle_timeout_s": 5}),
            ):
                await session.refused(method, place, body, status=410, code="session_ended")

    async def test_deleting_from_many_sides_at_once_is_one_end(self, api: Api, hosts: Hosts) -> None:
        async with api.session() as session:
            found = await asyncio.gather(*(session.call("DELETE", "") for _ in range(10)))
            assert {(one["state"], one["reason"]) for one in found} == {("ended", "deleted")}
            assert not hosts.has(session.found["sandbox_id"])

    async def test_deleting_ends_what_still_runs(self, api: Api) -> None:
        async with api.session() as session:
            running = asyncio.ensure_future(session.exec("sleep 100"))
            await asyncio.sleep(0.5)
            await session.call("DELETE", "")
            assert (await asyncio.wait_for(running, 30))["reason"] == "sandbox_lost"

    async def test_a_thread_whose_session_was_deleted_gets_a_fresh_one(self, api: Api) -> None:
        thread = unique()
        async with api.session(thread_id=thread) as first:
            await first.call("DELETE", "")
            async with api.session(thread_id=thread) as second:
                assert second.id != first.id
                assert second.found["previous"]["session_id"] == first.id
                assert second.found["previous"]["reason"] == "deleted"

    @pytest.mark.parametrize(
        ("method", "place", "body"),
        [
            ("GET", "", None),
            ("DELETE", "", None),
            ("PATCH", "", {}),
            ("POST", "/keep-alive", None),
            ("POST", "/exec", {"command": "true"}),
            ("GET", "/processes", None),
            ("GET", "/files", None),
            ("GET", "/files/content?path=x", None),
            ("GET", "/files/watch", None),
        ],
    )
    async def test_a_session_that_never_was_is_not_found(
        self, api: Api, method: str, place: str, body: dict[str, Any] | None
    ) -> None:
        unknown = f"/api/sessions/ses_{secrets.token_hex(16)}"
        await api.refused(method, f"{unknown}{place}", body, status=404, code="session_not_found")

    @pytest.mark.parametrize("provider", ["vmware", "e2b"])
    @pytest.mark.parametrize("place", ["/api/sessions", "/create_session"])
    async def test_a_provider_that_the_server_does_not_have_is_refused_with_those_it_has(
        self, api: Api, place: str, provider: str
    ) -> None:
        async with api.session() as session:
            there = session.found["provider"]
        refusal = await api.refused("POST", place, {"provider": provider}, status=422, code="invalid_request")
        assert provider in refusal["detail"]
        assert there in refusal["detail"] + refusal.get("remedy", "")
        async with api.session(provider=there) as session:
            assert session.found["provider"] == there


@pytest.mark.anyio
class LinuxSessionSuite:
    """What needs a real sandbox to be seen."""

    async def test_limits_of_its_own_are_in_force(self, api: Api) -> None:
        async with api.session(limits={"memory_mb": 96, "pids": 40, "open_files": 100}) as session:
            assert session.found["pooled"] is False
            isolation = (await session.show())["isolation"]["in_force"]
            assert "96" in isolation["memory_limit"]
            assert await session.output("ulimit -n; ulimit -u") == "100\n40\n"
            hog = await session.exec("head -c 300m /dev/zero | tail")
            assert hog["reason"] == "oom"

    async def test_limits_that_cannot_be_are_refused(self, api: Api) -> None:
        for limits in ({"memory_mb": 1}, {"cpus": -1}, {"pids": 0}, {"disk_mb": 10**12}):
            await api.refused("POST", "/api/sessions", {"limits": limits}, status=422, code="invalid_request")

    async def test_limits_above_the_machine_are_refused_by_the_name_of_their_option(self, api: Api) -> None:
        asked = {"memory_mb": ("max_memory_limit", 1024 * 1024), "cpus": ("max_cpus", 256), "pids": ("max_pids", 32768)}
        asked["disk_mb"] = "max_disk_mb", 1024 * 1024
        asked["open_files"] = "max_open_files", 1024 * 1024
        for name, (option, value) in asked.items():
            wanted = {"limits": {name: value}}
            refused = await api.refused("POST", "/api/sessions", wanted, status=422, code="invalid_request")
            assert f"{name} may be at most" in refused["detail"]
            assert option in refused["remedy"]

    async def test_an_image_of_its_own_is_used_and_an_unknown_one_refused(self, api: Api) -> None:
        async with api.session(image="host") as session:
            assert session.found["pooled"] is False
            assert await session.output("echo here") == "here\n"
        thread = unique()
        wanted = {"image": "no-such-image", "thread_id": thread}
        refused = await api.refused("POST", "/api/sessions", wanted, status=404, code="image_not_found")
        assert "no-such-image" in refused["detail"]
        assert (await api.get("/api/sessions", thread_id=thread))["sessions"] == []

    async def test_callers_that_go_away_while_their_sessions_are_made_leave_none(self, api: Api) -> None:
        label = unique()
        wanted = {"metadata": {"label": label}, "limits": {"memory_mb": 128}}
        callers = [await RawCaller.ask(api, "/api/sessions", wanted) for _ in range(120)]
        await asyncio.sleep(0.7)
        for caller in callers:
            caller.go_away()
        answers = [await caller.answer() for caller in callers]
        answered = {one["session_id"] for one in answers if one is not None}
        assert len(answered) < 120

        async def settled() -> bool:
            page = await api.get("/api/sessions", metadata=f"label={label}", state=["creating", "running", "stopping"])
            return all(one["session_id"] in answered for one in page["sessions"])

        try:
            await until(settled)
        finally:
            for session_id in await listed(api, metadata=f"label={label}"):
                await api.call("DELETE", f"/api/sessions/{session_id}")


class RawCaller:
    """A caller that closes its side of the connection while it waits, and still sees what was on its way to it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def ask(cls, api: Api, path: str, wanted: Any) -> "RawCaller":
        address, body = URL(api.url), json.dumps(wanted).encode()
        reader, writer = await asyncio.open_connection(address.host, address.port)
        headers = {**api.headers, "Host": address.authority, "Content-Length": str(len(body))}
        lines = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
        writer.write("\r\n".join([*lines, "", ""]).encode() + body)
        return cls(reader, writer)

    def go_away(self) -> None:
        self._writer.write_eof()

    async def answer(self) -> Any:
        """What came before the server had seen that the caller is gone; None if nothing did."""
        try:
            came = await self._reader.read()
        finally:
            self._writer.close()
        return json.loads(came.partition(b"\r\n\r\n")[2]) if came else None


async def create(api: Api, **wanted: Any) -> tuple[int, dict[str, Any]]:
    async with api.ask("POST", "/api/sessions", wanted) as answer:
        return answer.status, await answer.json()


async def listed(api: Api, **filters: Any) -> list[str]:
    page = await api.get("/api/sessions", **filters)
    return [one["session_id"] for one in page["sessions"]]


async def without_isolation(session: SessionApi) -> dict[str, Any]:
    shown = await session.show()
    del shown["isolation"]
    return shown
