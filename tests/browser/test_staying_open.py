"""A page that stays open: the server goes away and comes back, sessions and sign-ins expire, parts of the page fail."""

import anyio
import pytest
from browser.conftest import Visit
from browser.watched_page import WatchedPage
from e2e.api_client import Api
from playwright.async_api import Route, expect
from server_process import ServerProcess

pytestmark = [pytest.mark.anyio, pytest.mark.extended]


async def test_the_page_goes_on_when_the_server_is_back(
    page: WatchedPage, server: ServerProcess, admin_key: str
) -> None:
    page.expected.append("net::ERR_")
    list_of_sessions = page.get("table", "Sessions")
    async with Api(server.url, {"X-API-Key": admin_key}) as api:
        session = await api.post("/api/sessions", {"thread_id": "before"}, status=201)
    await expect(list_of_sessions).to_contain_text("before")
    server.kill()
    await expect(page.text("The server does not answer.")).to_be_visible()
    await expect(list_of_sessions).to_contain_text("before")  # what was known stays
    await page.get("link", "Usage").click()  # whose script was not loaded yet
    await expect(page.text("could not be loaded")).to_be_visible()
    await anyio.to_thread.run_sync(server.start)
    async with Api(server.url, {"X-API-Key": admin_key}) as api:
        await api.post("/api/sessions", {"thread_id": "meanwhile"}, status=201)
        await expect(page.text("The server does not answer.")).to_have_count(0)
        await expect(page.get("heading", "By day")).to_be_visible()
        await page.get("link", "Sessions", exact=True).click()
        await expect(list_of_sessions).to_contain_text("meanwhile")
        await api.call("DELETE", f"/api/sessions/{session['session_id']}")
        await expect(list_of_sessions).not_to_contain_text("before")
        await api.post("/api/sessions", {"thread_id": "after"}, status=201)
        await expect(list_of_sessions).to_contain_text("after")
        for found in (await api.get("/api/sessions"))["sessions"]:
            await api.call("DELETE", f"/api/sessions/{found['session_id']}")


async def test_a_session_that_expires_leaves_the_list(page: WatchedPage, api: Api) -> None:
    await api.post("/api/sessions", {"thread_id": "short", "idle_timeout_s": 1}, status=201)
    await expect(page.text("There is no session.")).to_be_visible()
    await page.field("State").select_option("ended")
    await expect(page.get("row", "short")).to_contain_text("idle")


async def test_a_sign_in_that_expires_shows_the_sign_in(visit: Visit, api: Api) -> None:
    made = await api.post("/api/admin/keys", {"name": "short", "tenant": "acme", "expires_in_s": 8}, status=201)
    page = await visit(made["key"], "/ui/account")
    await expect(page.text("Signed in until")).to_be_visible()
    await expect(page.text("You are not signed in any more")).to_be_visible()


async def test_a_part_that_fails_does_not_take_the_page_with_it(page: WatchedPage, api: Api) -> None:
    page.expected += ["null", "dynamically imported module", "failed: .*/ui/static/session-", "net::ERR_FAILED"]
    page.expected.append("410 \\(Gone\\)")  # of a page that asks once more after its session has ended

    async def answer_nonsense(route: Route) -> None:
        await route.fulfill(json={"sessions": [None], "next": None})

    await page.raw.route("**/api/sessions?*", answer_nonsense)
    await page.raw.reload()
    await expect(page.text("This part of the page has failed.")).to_be_visible()
    await page.raw.unroute("**/api/sessions?*")
    await page.raw.route("**/ui/static/session-*.js", lambda route: route.abort())
    async with api.session(thread_id="still there"):
        await page.get("link", "Account of").click()
        await expect(page.get("heading", "Account")).to_be_visible()
        await page.get("link", "Sessions", exact=True).click()
        await page.get("link", "still there").click()
        await expect(page.text("This part of the page could not be loaded.")).to_be_visible()
        await page.raw.unroute("**/ui/static/session-*.js")
        await page.get("button", "Load the page again").click()
        await expect(page.raw.get_by_role("main")).to_contain_text("ses_")
