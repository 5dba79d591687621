"""What only operators see: the doctor's report, builds of images, the history; of one server, and in a cluster."""

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e.alone_or_cluster import KINDS, Place, running
from e2e.api_client import Api, of, until
from e2e.conftest import NewState

pytestmark = pytest.mark.anyio

_KEY = "wk_" + "operator" * 6
_SLOW = "name: slow\nimage:\n  run: [echo begun, sleep 600]\n"
_BROKEN = "name: broken\nimage:\n  run: [echo some words; exit 7]\n"


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("registry")
    (folder / "environments").mkdir()
    for name, text in (("slow", _SLOW), ("broken", _BROKEN)):
        (folder / "environments" / f"{name}.yaml").write_text(text)
    return folder


@pytest.fixture(scope="module", params=KINDS)
def place(request: pytest.FixtureRequest, new_state: NewState, registry: Path) -> Iterator[Place]:
    settings = {"WARREN_AUTH": "true", "WARREN_API_KEY": _KEY, "WARREN_REGISTRY_DIR": str(registry)}
    with running(request.param, new_state, WARREN_MIN_FREE_MEMORY_MB="1", **settings) as place:
        yield place


@pytest.fixture
async def admin(place: Place) -> AsyncIterator[Api]:
    async with Api(place.server.url, {"X-API-Key": _KEY}) as api:
        yield api


async def test_the_doctors_report_can_be_read_and_is_made_once_a_minute(admin: Api) -> None:
    report = await admin.get("/api/admin/doctor")
    assert {"kernel", "cgroups"} <= {check["name"] for check in report["checks"]}
    assert sum(report["counts"].values()) == len(report["checks"])
    assert report["attack"] is None
    again = await admin.get("/api/admin/doctor", worker=report["worker"])
    assert again == report
    async with of(admin, "tenant") as tenant:
        await tenant.refused("GET", "/api/admin/doctor", status=403, code="forbidden")
    await admin.refused("GET", "/api/admin/doctor", status=404, code="not_found", worker="nobody")


async def test_the_history_has_what_was_done(admin: Api, place: Place) -> None:
    async with admin.session() as session:
        await session.exec("true")
        worker = session.found["worker"] if place.redis else ""

        async def has_execs() -> bool:
            shown = await admin.get("/api/history", **({"worker": worker} if worker else {}))
            return sum(value or 0 for value in shown["columns"]["execs"]) > 0

        async def has_session() -> dict[str, Any] | None:
            """A coordinator looks at other moments than a worker, as often."""
            shown = await admin.get("/api/history", span="1h")
            return shown if (shown["columns"]["sessions_running"][-1] or 0) >= 1 else None

        await until(has_execs)
        mine = await until(has_session)
        others = await admin.get("/api/history", span="24h", worker=worker)
    assert (mine["interval_s"], others["interval_s"]) == (10.0, 300.0)
    assert max(value or 0 for value in mine["columns"]["requests"]) >= 1
    assert others["pools"]["base"]["ready"]
    assert others["columns"]["memory_free_mb"][-1] > 0
    assert (mine["process"] == others["process"]) == (place.redis is None)
    async with of(admin, "tenant") as tenant:
        await tenant.refused("GET", "/api/history", status=403, code="forbidden")
    await admin.refused("GET", "/api/history", status=404, code="not_found", worker="nobody")
    await admin.refused("GET", "/api/history", status=422, code="invalid_request", span="1w")


async def _build(admin: Api, image: str) -> dict[str, Any] | None:
    builds = (await admin.get("/api/admin/builds"))["builds"]
    return next((build for build in builds if build["image"] == image), None)


async def test_an_operator_starts_follows_and_cancels_builds(admin: Api) -> None:
    started = await admin.post("/api/admin/builds", {"environment": "slow"}, status=202)
    assert (started["state"], started["ended_at"]) == ("building", None)
    again = await admin.post("/api/admin/builds", {"environment": "slow"}, status=202)
    assert again["started_at"] == started["started_at"]
    image = started["image"]

    async def runs_it() -> bool:
        build = await _build(admin, image)
        return build is not None and "sleep 600" in build["step"]

    await until(runs_it)
    ended = await admin.call("DELETE", "/api/admin/builds", image=image)
    assert ended["state"] == "cancelled"
    assert ended["ended_at"] >= ended["started_at"]
    await admin.refused("DELETE", "/api/admin/builds", status=404, code="not_found", image=image)
    broken = (await admin.post("/api/admin/builds", {"environment": "broken"}, status=202))["image"]

    async def has_failed() -> dict[str, Any] | None:
        build = await _build(admin, broken)
        return build if build is not None and build["state"] == "failed" else None

    assert "some words" in json.dumps((await until(has_failed))["lines"])


async def test_builds_are_for_operators_and_need_a_recipe(admin: Api) -> None:
    for image in ("", "nothing", "0" * 200, "0" * 201, "../x", "a/b:c@d", "a b"):
        await admin.refused("POST", "/api/admin/builds", {"image": image}, status=422, code="invalid_request")
    await admin.refused("POST", "/api/admin/builds", {"environment": "none"}, status=422, code="unknown_environment")
    async with of(admin, "tenant") as tenant:
        for method, body in (("GET", None), ("POST", {"environment": "slow"}), ("DELETE", None)):
            await tenant.refused(method, "/api/admin/builds", body, status=403, code="forbidden", image="slow")
