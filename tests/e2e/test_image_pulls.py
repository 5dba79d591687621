"""Images that tenants name and a server pulls for them: `environment: "tiny:1"`, and E2B's `fromImage`."""

import json
import shutil
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler

import pytest
from e2e.api_client import Api, until
from e2e.test_e2b_templates import ended, step
from registry_server import Image, LyingRegistry, lying_registry, send, tar_of
from server_process import ServerProcess, running_server
from small_tree import make_small_tree
from this_run import new_state_dir

from warren.images.registry.pull import PullOptions, pull_image
from warren.images.store.store import ImageStore
from warren.model.tenant_images import pulled_image

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LyingRegistry]:
    """Docker Hub, as far as the server knows. It has every tag of `tiny`, and waits with layers while `go` is clear."""
    root = make_small_tree(tmp_path_factory.mktemp("tree"), "/bin/bash", "/bin/grep", "/bin/rm")
    files = {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}
    image = Image(tar_of(files), config={"Env": ["GREETING=hello"]})

    def answer(handler: BaseHTTPRequestHandler) -> bool:
        if not handler.path.startswith("/v2/library/tiny/"):
            send(handler, b"", status=404)
            return True
        if handler.path.endswith(image.values["layers"][0]["digest"]):
            go.wait(60)
        return False

    with lying_registry(image, answer) as server:
        yield server
    go.set()


go = threading.Event()
go.set()


@contextmanager
def pulling_server(registry: LyingRegistry, **options: str) -> Iterator[ServerProcess]:
    state, mirror = new_state_dir(), f"docker.io={registry.host}"
    if options.get("WARREN_IMAGE_PULL") == "off":
        pull_image(ImageStore(state), "tiny:base", options=PullOptions(mirrors=(mirror,)))
    try:
        with running_server(
            *(state, "--pool-size", "0"),
            provider="oci",
            WARREN_API_KEY="an-admin-key-for-tests",
            WARREN_IMAGE_MIRRORS=mirror,
            **{"CONTAINER_IMAGE": "tiny:base", "WARREN_IMAGE_PULL": "on", **options},
        ) as server:
            yield server
    finally:
        shutil.rmtree(state)


@pytest.fixture(scope="module")
def server(registry: LyingRegistry) -> Iterator[ServerProcess]:
    with pulling_server(registry) as server:
        yield server


@pytest.fixture
async def admin(server: ServerProcess) -> AsyncIterator[Api]:
    async with Api(server.url, {"X-API-Key": "an-admin-key-for-tests"}) as api:
        yield api


async def key_of(admin: Api, tenant: str) -> dict[str, str]:
    made = await admin.post(
        "/api/admin/keys", {"name": tenant, "tenant": tenant, "scopes": ["sessions", "exec", "read"]}, status=201
    )
    return {"X-API-Key": made["key"]}


async def test_an_environment_may_be_an_image_which_is_pulled_for_the_tenant(admin: Api, server: ServerProcess) -> None:
    wanted, key = {"environment": "tiny:1"}, {"Idempotency-Key": "one"}
    go.clear()
    async with Api(server.url, await key_of(admin, "acme")) as acme, Api(server.url, await key_of(admin, "bob")) as bob:
        problem = await acme.refused("POST", "/api/sessions", wanted, status=503, code="image_building", headers=key)
        assert "is being pulled" in problem["detail"]
        assert {"step", "fraction", "remaining_s"} <= set(problem)

        async def downloads() -> bool:
            async with acme.ask("POST", "/api/sessions", wanted, headers=key) as answer:
                assert (answer.status, int(answer.headers["Retry-After"]) >= 2) == (503, True)
                return "downloading" in (await answer.json())["step"]

        await until(downloads, 30)
        go.set()
        made = await acme.post("/api/sessions", wanted, status=201)  # without a key: it waits
        assert (made["environment"], made["image"]) == ("base", "tiny:1")
        ran = await acme.post(f"/api/sessions/{made['session_id']}/exec", {"command": "echo $GREETING"})
        assert ran["stdout"] == "hello\n"

        shown = {one["name"] for one in (await acme.get("/api/images"))["images"]}
        assert "tiny:1" in shown
        assert "tiny:1" not in {one["name"] for one in (await bob.get("/api/images"))["images"]}
        stored = {one.name for one in ImageStore(server.state_dir).list()}
        assert pulled_image("acme", "tiny:1") in stored
        hidden = await bob.refused(
            "POST", "/api/sessions", {"image": pulled_image("acme", "tiny:1")}, status=404, code="image_not_found"
        )
        assert "pulled" in hidden["detail"]

        await acme.post("/api/sessions", {"image": "tiny:1"}, status=201)
        missing = await acme.refused(
            "POST", "/api/sessions", {"environment": "no/such:2"}, status=404, code="image_not_found"
        )
        assert "has no manifests/2 of no/such" in missing["detail"]
        near = f"127.0.0.1:{server.port}/x:1"
        private = await acme.refused("POST", "/api/sessions", {"environment": near}, status=422, code="invalid_request")
        assert "nothing is pulled for tenants" in private["detail"]
        both = {"environment": "tiny:1", "image": "tiny:2"}
        await acme.refused("POST", "/api/sessions", both, status=422, code="invalid_request")


async def test_what_the_operator_named_is_pulled_for_all(admin: Api, server: ServerProcess) -> None:
    made = await admin.post("/api/sessions", {}, status=201)
    assert made["image"] == "tiny:base"
    assert "tiny:base" in {one.name for one in ImageStore(server.state_dir).list()}


@pytest.mark.extended
async def test_a_template_may_be_built_on_an_image_that_is_pulled_for_it(admin: Api, server: ServerProcess) -> None:
    async with Api(server.url, await key_of(admin, "carol")) as api:
        asked = await api.post("/v3/templates", {"name": "mine"}, status=202)
        place = f"/templates/mine/builds/{asked['buildID']}"
        steps = [step("RUN", "echo made > /home/user/made")]
        await api.post(f"/v2{place}", {"fromImage": "tiny:7", "steps": steps, "force": False}, status=202)
        status = await ended(api, place)
        assert status["status"] == "ready", status
        assert any("downloading" in entry["message"] for entry in status["logEntries"])
        assert pulled_image("carol", "tiny:7") in {one.name for one in ImageStore(server.state_dir).list()}


async def test_only_what_the_operator_lists_is_pulled(registry: LyingRegistry) -> None:
    listed = {"WARREN_IMAGE_PULL": "allow-list", "WARREN_IMAGE_PULL_ALLOWED": "tiny:1"}
    with pulling_server(registry, **listed) as server:
        async with Api(server.url, {"X-API-Key": "an-admin-key-for-tests"}) as api:
            assert (await api.post("/api/sessions", {"environment": "tiny:1"}, status=201))["image"] == "tiny:1"
            problem = await api.refused(
                "POST", "/api/sessions", {"environment": "tiny:2"}, status=404, code="image_not_found"
            )
            assert "image_pull_allowed" in problem["remedy"]
            asked = await api.post("/v3/templates", {"name": "mine"}, status=202)
            place = f"/v2/templates/mine/builds/{asked['buildID']}"
            answer = await api.post(place, {"fromImage": "tiny:2", "steps": []}, status=400)
            assert "not one of those" in json.dumps(answer)


async def test_nothing_is_pulled_by_default(registry: LyingRegistry) -> None:
    with pulling_server(registry, WARREN_IMAGE_PULL="off") as server:
        before = len(registry.asked)
        async with Api(server.url, {"X-API-Key": "an-admin-key-for-tests"}) as api:
            problem = await api.refused(
                "POST", "/api/sessions", {"environment": "tiny:1"}, status=404, code="image_not_found"
            )
            assert "warren image pull tiny:1" in problem["remedy"]
            pulled = await api.post("/api/sessions", {"environment": "tiny:base"}, status=201)
            assert (pulled["environment"], pulled["image"]) == ("base", "tiny:base")
        assert len(registry.asked) == before
