"""What a server says about itself, and whom it does not listen to."""

import aiohttp
import pytest
from e2e.api_client import Api, SessionApi


@pytest.mark.anyio
class ServerSuite:
    async def test_health_has_the_fields_its_first_clients_know(self, session: SessionApi, api: Api) -> None:
        found = await api.get("/health")
        assert found["status"] == "healthy"
        assert isinstance(found["pool_size"], int)
        assert found["active_sessions"] >= 1
        assert found["worker_id"]

    async def test_a_server_that_takes_work_is_ready(self, api: Api) -> None:
        assert (await api.get("/ready"))["status"] == "ready"

    async def test_a_server_says_which_it_is(self, api: Api) -> None:
        found = await api.get("/version")
        assert found["name"] == "warren"
        assert found["version"]
        assert found["provider"]

    async def test_figures_of_pools_and_sessions(self, session: SessionApi, api: Api) -> None:
        found = await api.get("/api/stats")
        assert found["sessions"]["running"] >= 1
        pools = [pool for worker in found["workers"].values() for pool in worker["pools"].values()]
        assert sum(pool["claims"] for pool in pools) >= 1
        for name in ("ready", "creating", "waiting", "hits", "misses", "creations", "failures", "latency_p50_s"):
            assert all(name in pool for pool in pools), (name, pools)

    async def test_the_api_describes_itself(self, api: Api) -> None:
        found = await api.get("/openapi.json")
        for place in (
            "/api/sessions", "/api/sessions/{session_id}", "/api/sessions/{session_id}/exec",
            "/api/sessions/{session_id}/processes", "/api/sessions/{session_id}/files/content",
            "/create_session", "/execute", "/upload_file", "/download_file", "/list_files", "/cleanup", "/health",
        ):  # fmt: skip
            assert all("summary" in one for one in found["paths"][place].values())
        page = await api.get("/docs")
        assert page.startswith(b"<!doctype html>")
        assert b"/api/sessions" in page

    async def test_what_is_not_there_is_a_problem(self, api: Api) -> None:
        await api.refused("GET", "/nowhere", status=404, code="not_found")
        await api.refused("DELETE", "/execute", status=405, code="method_not_allowed")
        await api.refused("POST", "/execute", data=b"{", status=400, code="invalid_json")

    async def test_every_answer_has_an_id_and_is_not_kept(self, api: Api) -> None:
        async with api.ask("GET", "/health", headers={"X-Request-ID": "my-id-1"}) as answer:
            assert answer.headers["X-Request-ID"] == "my-id-1"
            assert answer.headers["Cache-Control"] == "no-store"
        async with api.ask("GET", "/nowhere") as answer:
            assert len(answer.headers["X-Request-ID"]) >= 16

    async def test_another_host_than_the_servers_is_refused(self, api: Api) -> None:
        for host in ("evil.example", "evil.example:8000", "127.0.0.1.evil.example"):
            headers = {"Host": host}
            await api.refused("GET", "/health", headers=headers, status=421, code="host_not_allowed")
        await api.get("/health", headers={"Host": "localhost"})

    async def test_a_web_page_from_elsewhere_is_refused(self, api: Api) -> None:
        for origin in ("https://evil.example", "null", "http://127.0.0.1:1"):
            headers = {"Origin": origin}
            await api.refused("POST", "/create_session", headers=headers, status=403, code="origin_not_allowed")
        await api.get("/health", headers={"Origin": api.url})

    async def test_a_web_page_from_elsewhere_gets_no_terminal(self, session: SessionApi) -> None:
        for headers in ({"Origin": "https://evil.example"}, {"Host": "evil.example"}):
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                async with session.socket("/terminal", headers=headers):
                    pass
            assert refused.value.status in (403, 421)

    async def test_a_body_that_is_too_large_is_refused(self, session: SessionApi) -> None:
        body = {"command": "cat", "stdin": "x" * (5 << 20)}
        await session.refused("POST", "/exec", body, status=413, code="too_large")
