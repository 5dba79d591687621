"""A thousand sessions: the list shows them page by page, and asks the server for no more than it shows."""

import anyio
import pytest
from browser.conftest import Visit
from e2e.api_client import Api
from playwright.async_api import expect

pytestmark = [pytest.mark.anyio, pytest.mark.extended]

PROVIDER = "fake"
COUNT, PAGE = 1000, 50


@pytest.fixture
async def thousand(api: Api) -> None:
    at_once = anyio.CapacityLimiter(16)

    async def make(number: int) -> None:
        async with at_once:
            await api.post("/api/sessions", {"thread_id": f"conv-{number:04}"}, status=201)

    async with anyio.create_task_group() as tasks:
        for number in range(COUNT):
            tasks.start_soon(make, number)


async def test_a_thousand_sessions(visit: Visit, api: Api, admin_key: str, thousand: None) -> None:
    page = await visit(admin_key)
    asked: list[str] = []
    page.raw.on("request", lambda request: asked.append(request.url) if "/api/sessions?" in request.url else None)
    rows = page.get("table", "Sessions").locator("tbody tr")
    seen: list[str] = []
    for _ in range(COUNT // PAGE):
        await expect(rows).to_have_count(PAGE)
        names = await rows.locator(".name").all_text_contents()
        assert not set(names) & set(seen)
        seen += names
        if len(seen) < COUNT:
            address = page.raw.url
            await page.get("link", "Older").click()
            await expect(rows.filter(has_text=names[0])).to_have_count(0)
            assert page.raw.url != address
    assert len(set(seen)) == COUNT
    await expect(page.get("link", "Older")).to_have_count(0)
    await page.get("link", "Newest").click()
    await expect(rows.filter(has_text=seen[0])).to_be_visible()
    await page.field("Search").fill("conv-0500")
    await expect(rows).to_have_count(1)
    await expect(rows).to_contain_text("conv-0500")
    # A burst of changes makes a few requests, not one for each.
    await page.field("Search").fill("")
    await expect(rows).to_have_count(PAGE)
    asked.clear()
    newest = (await api.get("/api/sessions", limit=100))["sessions"]
    for session in newest:
        await api.call("DELETE", f"/api/sessions/{session['session_id']}")
    await expect(rows.filter(has_text=newest[-1]["thread_id"])).to_have_count(0)
    await expect(rows.first).not_to_contain_text(newest[0]["thread_id"])
    assert len(asked) < len(newest) / 4, asked
    assert all(f"limit={PAGE}" in url for url in asked)
