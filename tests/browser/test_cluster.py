"""The dashboard of a cluster: a coordinator, two workers and Redis. One of the workers is drained, and killed."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from browser.conftest import Visit
from browser.shell import Shell
from browser.watched_page import WatchedPage
from cluster_processes import Cluster, running_cluster
from e2e.api_client import Api
from playwright.async_api import Locator, expect
from redis_server import RedisServer
from server_process import ServerProcess
from this_run import new_state_dir

pytestmark = [pytest.mark.anyio, pytest.mark.extended]

KEY = "the-operator-has-this-key"
LOST_MS = 60_000  # until the others are sure that a worker does not come back


@pytest.fixture(scope="module")
def cluster(image_cache: Path) -> Iterator[Cluster]:
    states = [new_state_dir(image_cache) for _ in range(3)]
    settings = {"WARREN_API_KEY": KEY, "WARREN_MIN_FREE_MEMORY_MB": "1", "WARREN_ENVIRONMENT": "host"}
    settings |= {"WARREN_POOL_SIZE": "1", "WARREN_POOL_MIN": "0", "WARREN_EGRESS_NETWORKS": "127.0.0.0/8"}
    redis = RedisServer(states[0] / "redis")
    with running_cluster(Cluster(redis, states[:2], states[2:], "--on-stop", "destroy", **settings)) as cluster:
        yield cluster
    left = [sandbox for state in states for sandbox in (state / "sandboxes").glob("*")]
    for state in states:
        shutil.rmtree(state, ignore_errors=True)
    assert left == []


@pytest.fixture(scope="module")
def server(cluster: Cluster) -> ServerProcess:
    return cluster.coordinators[0]


@pytest.fixture(scope="module")
def admin_key() -> str:
    return KEY


def row(page: WatchedPage, table: str, text: str) -> Locator:
    return page.get("table", table).get_by_role("row").filter(has_text=text)


async def test_everything_of_a_session_on_another_machine(page: WatchedPage, api: Api) -> None:
    await page.get("button", "New session").click()
    form = page.get("dialog", "New session")
    await form.get_by_label("Thread").fill("far away")
    await form.get_by_text("Network", exact=True).click()
    await form.get_by_label("Only what is named here").check()
    await form.get_by_label("Allowed, one on each line").fill("api.example.com")
    await form.get_by_role("button", name="Create").click()
    await page.raw.wait_for_url("**/ui/sessions/ses_*")
    place = page.raw.url
    shell = await Shell(page).open()
    await shell.type("echo it is $((6 * 7)) | tee answer; curl -sS http://www.example.com")
    await shell.type("python3 -m http.server 8123 &")
    await shell.says("it is 42")
    await page.raw.reload()
    await shell.says("it is 42")
    await page.get("tab", "Files").click()
    await page.get("button", "answer").click()
    await expect(page.field("Text")).to_have_value("it is 42\n")
    await page.get("tab", "Code").click()
    await page.field("Code of cell 1").fill("print(2 ** 10)")
    await page.field("Code of cell 1").press("Control+Enter")
    await expect(page.raw.get_by_role("main")).to_contain_text("1024")
    await page.get("tab", "Ports").click()
    await expect(row(page, "Ports", "8123")).to_be_visible()
    await page.get("tab", "Network").click()
    await expect(page.raw.get_by_role("main")).to_contain_text("www.example.com")
    await page.get("tab", "Figures").click()
    await expect(page.get("list", "Now")).to_contain_text(re.compile(r"MiB of 512 MiB"))
    await page.get("link", "Sessions", exact=True).click()
    line = row(page, "Sessions", "far away")
    await expect(line).to_contain_text(re.compile(r"worker-\d"))
    await expect(line).to_contain_text(re.compile(r"\d [KM]iB"))
    await page.goto(place)
    await page.get("button", "End", exact=True).click()
    await page.get("button", "End the session").click()
    await expect(page.text("This session has ended.")).to_be_visible()


async def test_the_machines_of_the_cluster(page: WatchedPage, cluster: Cluster) -> None:
    await page.goto("/ui/machine")
    for worker in cluster.workers:
        await expect(row(page, "Workers", worker)).to_contain_text("ready")
        await page.raw.get_by_label(re.compile(r"^Of")).select_option(worker)
        await expect(page.text(f"Figures of {worker}")).to_be_visible()
    await page.goto("/ui/admin/images")
    for worker in cluster.workers:
        await page.field("Machine of").select_option(worker)
        await expect(page.text(f"Nothing was built by {worker}")).to_be_visible()
    await page.goto("/ui/admin/doctor")
    for worker in cluster.workers:
        await page.field("Machine of").select_option(worker)
        await expect(page.text(re.compile(rf"^{worker}, "))).to_be_visible()


async def test_a_worker_that_is_drained_and_one_that_dies(visit: Visit, api: Api, cluster: Cluster) -> None:
    session = await api.post("/api/sessions", {"thread_id": "unlucky"}, status=201)
    worker = session["worker"]
    machines, looking = await visit(KEY, "/ui/machine"), await visit(KEY, f"/ui/sessions/{session['session_id']}")
    looking.expected += ["status of 5", "status of 410", "net::ERR_", "WebSocket"]  # 410: its sandbox is lost
    machines.expected += ["status of 5"]
    shell = await Shell(looking).open()
    line = row(machines, "Workers", worker)
    await line.get_by_role("button", name="Drain").click()
    await expect(line).to_contain_text("draining")
    async with api.session() as other:
        assert other.found["worker"] != worker
    await shell.type("echo still $((40 + 2))")
    await shell.says("still 42")
    await line.get_by_role("button", name="Use again").click()
    await expect(line).to_contain_text("ready")
    cluster.workers[worker].kill()
    await expect(line).to_contain_text("dead", timeout=LOST_MS)
    await expect(looking.raw.get_by_role("main")).to_contain_text("lost", timeout=LOST_MS)
    await anyio.to_thread.run_sync(cluster.workers[worker].start)
    await expect(line).to_contain_text("ready", timeout=LOST_MS)
    await api.call("DELETE", f"/api/sessions/{session['session_id']}")
