"""Signing in by link and by key, signing out, and coming back to the page after the sign-in has ended."""

import re
from urllib.parse import quote

import pytest
from browser.conftest import FAR_NAME, NewKey, Visit
from browser.watched_page import WatchedPage
from e2e.api_client import Api
from playwright.async_api import expect
from server_process import ServerProcess

pytestmark = pytest.mark.anyio

REFUSED = "status of 401"


async def sign_in_with(page: WatchedPage, key: str) -> None:
    await page.field("API key").fill(key)
    await page.get("button", "Sign in").click()


async def test_a_link_signs_in_once(visit: Visit, api: Api) -> None:
    link = (await api.post("/api/ui/links", status=201))["url"]
    page, other = await visit(), await visit()
    await page.goto(link)
    await expect(page.get("heading", "Sessions")).to_be_visible()
    assert "#" not in page.raw.url
    await other.goto("about:blank")
    await other.goto(link)
    other.expected.append(REFUSED)
    await expect(other.raw.get_by_role("alert")).to_be_visible()
    await other.get("link", "Sign in with a key").click()
    await expect(other.field("API key")).to_be_visible()


async def test_no_other_page_signs_somebody_in_by_a_link_of_its_own(visit: Visit, api: Api, new_key: NewKey) -> None:
    async def link_of(tenant: str) -> str:
        async with Api(api.url, {"X-API-Key": await new_key(tenant)}) as attacker:
            return str((await attacker.post("/api/ui/links", status=201))["url"])

    for key in ("", await new_key("victim")):
        page = await visit(key)
        leads = f"<script>location = '{await link_of('attacker')}'</script>"
        await page.goto(f"data:text/html,{quote(leads)}")
        await expect(page.text("A link wants to sign this browser in.")).to_be_visible()
        await expect(page.text("You are signed in as victim.")).to_have_count(1 if key else 0)
        await page.get("button", "Cancel").click()
        await expect(page.get("heading", "Sessions") if key else page.field("API key")).to_be_visible()
        await expect(page.text("attacker")).to_have_count(0)
        # Somebody who opens it on purpose can still use it; whoever is signed in is asked even then.
        await page.goto(await link_of("other"))
        if key:
            await page.get("button", "Use the link").click()
        await expect(page.get("link", "Account of other")).to_be_visible()


async def test_a_key_signs_in_and_stays_after_a_reload(visit: Visit, new_key: NewKey) -> None:
    page = await visit(place="/ui/account")
    page.expected.append(REFUSED)
    await sign_in_with(page, "wk_wrong_00000000000000000000000000000000")
    await expect(page.raw.get_by_role("alert")).to_contain_text("This API key is not known here (paste all of it")
    await sign_in_with(page, await new_key("acme", "read"))
    # The page that was asked for, not the first one.
    await expect(page.get("heading", "Account")).to_be_visible()
    await page.raw.reload()
    await expect(page.raw.get_by_role("main")).to_contain_text("acme")
    assert await page.raw.evaluate("Object.keys(localStorage).length + Object.keys(sessionStorage).length") == 0
    assert await page.raw.evaluate("document.cookie") == ""


async def test_the_navigation_shows_what_the_key_may_see(visit: Visit, new_key: NewKey) -> None:
    auditor = await visit(await new_key("acme", "audit"), "/ui/sessions")
    await expect(auditor.get("heading", "Not found")).to_be_visible()
    await expect(auditor.get("link", "Sessions", exact=True)).to_have_count(0)
    reader = await visit(await new_key("acme", "read"))
    await expect(reader.get("link", "Sessions", exact=True)).to_have_attribute("aria-current", "page")
    await expect(reader.text("There is no session.")).to_be_visible()
    await expect(reader.get("button", "New session")).to_have_count(0)
    await expect(reader.field("Tenant")).to_have_count(0)


async def test_signing_out_everywhere_ends_every_page_of_the_key(visit: Visit, new_key: NewKey) -> None:
    key = await new_key("acme")
    first, second = await visit(key), await visit(key, "/ui/account?from=here")
    first.expected.append(REFUSED)
    await second.get("button", "Sign out everywhere").click()
    await second.get("dialog", "Sign out everywhere").get_by_role("button", name="Sign out everywhere").click()
    await expect(second.text("You are signed out.")).to_be_visible()
    # The other page notices at its next request, and comes back to where it was.
    await first.raw.reload()
    await expect(first.field("API key")).to_be_visible()
    await sign_in_with(second, key)
    await expect(second.get("heading", "Account")).to_be_visible()
    assert second.raw.url.endswith("/ui/account?from=here")
    await second.get("button", "Sign out", exact=True).click()
    await expect(second.field("API key")).to_be_visible()
    await second.raw.reload()
    await expect(second.field("API key")).to_be_visible()


async def test_a_revoked_key_signs_out_an_open_page(visit: Visit, api: Api) -> None:
    made = await api.post("/api/admin/keys", {"name": "soon gone", "tenant": "acme"}, status=201)
    page = await visit(made["key"], "/ui/sessions?state=running")
    page.expected += [REFUSED, "ERR_INCOMPLETE_CHUNKED_ENCODING"]  # the stream of events is cut off
    await expect(page.text("No session is like that.")).to_be_visible()
    await api.call("DELETE", f"/api/admin/keys/{made['id']}", status=204)
    # Nobody touches the page: the stream of events ends, and asking for it again is refused.
    await expect(page.text("You are not signed in any more")).to_be_visible()
    await sign_in_with(
        page, str((await api.post("/api/admin/keys", {"name": "new", "tenant": "acme"}, status=201))["key"])
    )
    await expect(page.field("State")).to_have_value("running")


async def test_where_browsers_keep_no_sign_in_the_key_stays_in_the_page(
    visit: Visit, server: ServerProcess, new_key: NewKey
) -> None:
    page = await visit(place=f"http://{FAR_NAME}:{server.port}/ui/account")
    page.expected.append("Cross-Origin-Opener-Policy header has been ignored")
    await expect(page.text("This connection is not encrypted")).to_be_visible()
    await sign_in_with(page, await new_key("acme"))
    await expect(page.text("in the memory of this page only")).to_be_visible()
    await page.get("link", "Sessions", exact=True).click()
    await expect(page.text("There is no session.")).to_be_visible()
    assert await page.raw.context.cookies() == []
    await page.raw.reload()
    await expect(page.field("API key")).to_be_visible()


async def test_a_page_that_is_not_there(page: WatchedPage) -> None:
    await page.goto("/ui/nowhere")
    await expect(page.get("heading", "Not found")).to_be_visible()
    await expect(page.raw).to_have_title(re.compile("Not found"))
    await page.get("link", "Go to the first page").click()
    await expect(page.raw).to_have_title("Sessions · Warren")
