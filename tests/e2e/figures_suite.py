"""What a session uses: of one with its series, of several at once, and the alert when something is nearly used up."""

from typing import Any

import pytest
from e2e.api_client import Api, SessionApi, until
from e2e.session_suite import unique

POINT = {
    *("at", "cpu_s", "cpus", "memory_bytes", "cache_bytes", "disk_bytes", "processes"),
    *("sent_bytes", "received_bytes"),
}
MIB = 1024 * 1024


@pytest.mark.anyio
class FiguresSuite:
    async def test_a_session_shows_what_it_uses(self, api: Api) -> None:
        async with api.session(limits={"memory_mb": 256, "disk_mb": 64, "pids": 99, "cpus": 1}) as session:
            await session.write("large", b"x" * (5 * MIB))
            found = await session.get("/metrics")
            assert set(found) == {"session_id", "interval_s", "limits", "now", "series"}
            assert found["session_id"] == session.id
            assert found["limits"] == {
                "cpus": 1,
                "memory_bytes": 256 * MIB,
                "disk_bytes": 64 * MIB,
                "processes": 99,
            }
            assert set(found["now"]) == POINT
            assert found["now"]["processes"] >= 1
            shown = await until(lambda: self._shown(session, 5 * MIB))
            assert set(shown["series"][0]) == POINT
            assert shown["interval_s"] >= 10

    async def _shown(self, session: SessionApi, disk_bytes: int) -> dict[str, Any] | None:
        """Once the series has begun, and what was written shows."""
        found: dict[str, Any] = await session.get("/metrics")
        return found if found["series"] and found["now"]["disk_bytes"] >= disk_bytes else None

    async def test_looking_is_no_use(self, api: Api, session: SessionApi) -> None:
        before = (await session.show())["idle_expires_at"]
        await session.get("/metrics")
        await api.get("/api/metrics", session_ids=session.id)
        assert (await session.show())["idle_expires_at"] == before

    async def test_several_are_shown_at_once_and_others_left_out(self, api: Api) -> None:
        async with api.session() as one, api.session() as two:
            names = ",".join([one.id, "ses_unknown", two.id, one.id])

            async def both() -> dict[str, Any] | None:
                found = (await api.get("/api/metrics", session_ids=names))["metrics"]
                return found if len(found) == 2 else None

            found = await until(both)
            assert set(found) == {one.id, two.id}
            assert all(set(each) == {"limits", "now"} and set(each["now"]) == POINT for each in found.values())
        assert (await api.get("/api/metrics", session_ids=names)) == {"metrics": {}}

    async def test_of_others_only_for_operators(self, api: Api) -> None:
        async with api.session() as session:
            for of in ("default", "*"):

                async def found(of: str = of) -> bool:
                    return session.id in (await api.get("/api/metrics", session_ids=session.id, of=of))["metrics"]

                await until(found)
            assert await api.get("/api/metrics", session_ids=session.id, of="acme") == {"metrics": {}}
            await api.refused(
                "GET", "/api/metrics", session_ids=session.id, of="a b", status=422, code="invalid_request"
            )

    async def test_what_cannot_be_asked_is_refused(self, api: Api) -> None:
        for wrong in (",", ",".join(f"ses_{at}" for at in range(101))):
            await api.refused("GET", "/api/metrics", session_ids=wrong, status=422, code="invalid_request")
        await api.refused("GET", "/api/metrics", status=422, code="invalid_request")
        await api.refused("GET", "/api/sessions/ses_unknown/metrics", status=404, code="session_not_found")

    async def test_a_nearly_full_disk_is_told_once(self, api: Api) -> None:
        thread = unique()
        async with api.session(thread_id=thread, limits={"disk_mb": 16}) as session:
            await session.write("large", b"x" * int(14.8 * MIB))

            async def told() -> list[dict[str, Any]]:
                found = await api.get("/api/audit", session_id=session.id, action="resource.high")
                return list(found["deeds"])

            (deed,) = await until(told)
            detail = deed["detail"]
            assert (detail["resource"], detail["limit"], detail["threshold"]) == ("disk", 16 * MIB, 90)
            assert detail["thread_id"] == thread
            assert 90 <= detail["percent"] == pytest.approx(100 * detail["used"] / detail["limit"], abs=0.1)


@pytest.mark.anyio
class LinuxFiguresSuite:
    async def test_work_shows_in_memory_and_processors(self, api: Api) -> None:
        async with api.session() as session:
            first = (await session.get("/metrics"))["now"]
            hold = "x = bytearray(60 << 20)\nx[::4096] = b'1' * len(x[::4096])\nimport time\n"
            work = f'python3 -c "{hold}while time.process_time() < 300: pass"'
            process = await session.start(work)

            async def busy() -> dict[str, Any] | None:
                now: dict[str, Any] = (await session.get("/metrics"))["now"]
                return now if now["memory_bytes"] > 55 * MIB and now["cpus"] > 0.2 else None

            now = await until(busy)
            assert now["cpu_s"] > first["cpu_s"]
            await session.post(f"/processes/{process}/kill", {"grace_s": 0})
