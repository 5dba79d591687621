"""Snapshots and forks over HTTP: saved, named, started from, downloaded, uploaded, forked, deleted."""

import asyncio
import contextlib
import io
import tarfile
from collections.abc import AsyncIterator
from typing import Any

import pytest
from e2e.api_client import Api, SessionApi


@contextlib.asynccontextmanager
async def saved(api: Api, session: SessionApi, name: str, **more: Any) -> AsyncIterator[dict[str, Any]]:
    made = await session.post("/snapshots", {"name": name, **more}, status=201)
    try:
        yield made
    finally:
        async with api.ask("DELETE", f"/api/snapshots/{made['snapshot_id']}"):
            pass


def tar_of(name: str, data: bytes) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as tar:
        info = tarfile.TarInfo(name)
        info.size = len(data)
        tar.addfile(info, io.BytesIO(data))
    return file.getvalue()


@pytest.mark.anyio
class SnapshotSuite:
    async def test_sessions_start_with_the_files_of_a_snapshot(self, api: Api) -> None:
        async with api.session(thread_id="snapshots-1") as session:
            await session.write("dir/a.txt", b"as it was")
            async with saved(api, session, "suite-1", metadata={"k": "v"}) as one:
                await session.write("dir/a.txt", b"later")
                assert (one["name"], one["session_id"], one["thread_id"]) == ("suite-1", session.id, "snapshots-1")
                assert (one["metadata"], one["owner"], one["public"], one["parent"]) == (
                    {"k": "v"},
                    "user",
                    False,
                    None,
                )
                assert await api.get("/api/snapshots/suite-1") == one
                assert one in (await api.get("/api/snapshots", session_id=session.id))["snapshots"]
                for which in ("suite-1", one["snapshot_id"]):
                    async with api.session(snapshot=which) as other:
                        assert other.found["snapshot"] == one["snapshot_id"]
                        assert await other.read("dir/a.txt") == b"as it was"
                        await other.write("dir/a.txt", b"of the other")
                assert await session.read("dir/a.txt") == b"later"

    async def test_several_start_from_one_at_once(self, api: Api, session: SessionApi) -> None:
        await session.write("a.txt", b"many")
        async with saved(api, session, "suite-many"), contextlib.AsyncExitStack() as stack:
            made = await asyncio.gather(
                *(stack.enter_async_context(api.session(snapshot="suite-many")) for _ in range(4))
            )
            assert [await one.read("a.txt") for one in made] == [b"many"] * 4

    async def test_a_name_moves_to_the_newest(self, api: Api, session: SessionApi) -> None:
        await session.write("a.txt", b"1")
        async with saved(api, session, "suite-name") as old:
            await session.write("a.txt", b"2")
            async with saved(api, session, "suite-name") as new:
                assert (await api.get("/api/snapshots/suite-name"))["snapshot_id"] == new["snapshot_id"]
                assert (await api.get(f"/api/snapshots/{old['snapshot_id']}"))["name"] is None

    async def test_a_download_comes_back_as_it_was_and_nothing_else_does(self, api: Api, session: SessionApi) -> None:
        await session.write("a.txt", b"carried")
        async with saved(api, session, "suite-file") as one:
            async with api.ask("GET", "/api/snapshots/suite-file/content") as answer:
                data = await answer.read()
                disposition = answer.headers["Content-Disposition"]
            assert disposition == 'attachment; filename="suite-file.warren-snapshot"'
        back = await api.call("PUT", "/api/snapshots", data=data, status=201)
        assert (back["name"], back["sha256"]) == ("suite-file", one["sha256"])
        async with api.session(snapshot="suite-file") as other:
            assert await other.read("a.txt") == b"carried"
        await api.call("DELETE", "/api/snapshots/suite-file", status=204)
        for bad in (data[:-1], data[:100], data[:60] + b"!" + data[61:], data + b"x"):
            await api.refused("PUT", "/api/snapshots", data=bad, status=422, code="invalid_request")

    async def test_a_tar_is_unpacked_inside_a_sandbox(self, api: Api) -> None:
        sessions = (await api.get("/api/sessions"))["sessions"]
        one = await api.call("PUT", "/api/snapshots", data=tar_of("src/a.py", b"x"), name="suite-tar", status=201)
        async with api.session(snapshot="suite-tar") as session:
            assert await session.read("src/a.py") == b"x"
        await api.call("DELETE", f"/api/snapshots/{one['snapshot_id']}", status=204)
        for bad in (tar_of("../a", b"x"), tar_of("/etc/a", b"x"), b"no tar" * 200):
            await api.refused("PUT", "/api/snapshots", data=bad, status=422, code="invalid_request")
        assert len((await api.get("/api/sessions"))["sessions"]) == len(sessions)

    async def test_forks_live_for_themselves(self, api: Api) -> None:
        async with api.session(env={"A": "1"}, metadata={"m": "1"}) as session:
            await session.write("a.txt", b"common")
            made = await session.post("/fork", {"count": 3, "metadata": {"n": "2"}}, status=201)
            assert (made["errors"], made["carried"], len(made["sessions"])) == ([], "files", 3)
            forks = [SessionApi(api, one) for one in made["sessions"]]
            assert {one.found["forked_from"] for one in forks} == {session.id}
            assert forks[0].found["metadata"] == {"m": "1", "n": "2"}
            await forks[0].write("a.txt", b"mine")
            assert [await one.read("a.txt") for one in (*forks, session)] == [b"mine", *[b"common"] * 3]
            assert await api.get("/api/snapshots", session_id=session.id, hidden=True) == {
                "snapshots": [], "next": None,
            }  # fmt: skip
            for one in forks:
                await api.call("DELETE", f"/api/sessions/{one.id}")

    async def test_a_fork_with_a_key_is_made_once(self, api: Api, session: SessionApi) -> None:
        key = {"Idempotency-Key": f"fork-{session.id}"}
        asked = [session.post("/fork", {"count": 2}, headers=key, status=201) for _ in range(3)]
        made = [{one["session_id"] for one in each["sessions"]} for each in await asyncio.gather(*asked)]
        assert made[0] == made[1] == made[2]
        for session_id in made[0]:
            await api.call("DELETE", f"/api/sessions/{session_id}")

    async def test_what_cannot_be_is_refused(self, api: Api, session: SessionApi) -> None:
        for body in ({"name": "snap_x"}, {"name": "a/b"}, {"public": True}, {"expires_in_s": -1}, {"x": 1}):
            await session.refused("POST", "/snapshots", body, status=422, code="invalid_request")
        for body in ({"count": 0}, {"count": 21}, {"count": 2, "thread_ids": ["a"]}):
            await session.refused("POST", "/fork", body, status=422, code="invalid_request")
        for method, place in (("GET", ""), ("GET", "/content"), ("DELETE", "")):
            await api.refused(method, f"/api/snapshots/not-there{place}", status=404, code="not_found")
        await api.refused("POST", "/api/sessions", {"snapshot": "not-there"}, status=404, code="not_found")
        async with saved(api, session, "suite-size") as one:
            small = {"snapshot": "suite-size", "limits": {"disk_mb": one["disk_mb"] - 1}}
            await api.refused("POST", "/api/sessions", small, status=422, code="invalid_request")
            other = {"snapshot": "suite-size", "provider": "no-such"}
            await api.refused("POST", "/api/sessions", other, status=422, code="invalid_request")
