"""The list of sessions: it lives, it filters, it makes, prolongs and ends sessions."""

import re

import pytest
from browser.conftest import NewKey, Visit
from browser.watched_page import WatchedPage
from e2e.api_client import Api
from playwright.async_api import Locator, expect

pytestmark = pytest.mark.anyio

HOSTILE = "<img src=x onerror=alert(1)>\"'`${1}"


def row(page: WatchedPage, text: str) -> Locator:
    return page.get("table", "Sessions").get_by_role("row").filter(has_text=text)


def rows(page: WatchedPage) -> Locator:
    return page.get("table", "Sessions").locator("tbody tr")


async def test_the_list_lives(page: WatchedPage, api: Api) -> None:
    await expect(page.text("There is no session.")).to_be_visible()
    async with api.session(thread_id="conv-1", metadata={"user": "u-7"}) as session:
        line = row(page, "conv-1")
        await expect(line).to_contain_text("running")
        await expect(line).to_contain_text("user=u-7")
        await expect(line.get_by_role("cell", name=re.compile(r"^\d+ min$"))).to_be_visible()
        # What it uses, as the kernel says: every session has some memory.
        await expect(line).to_contain_text(re.compile(r"\d [KM]iB"))
        await line.get_by_role("link").click()
        await page.raw.wait_for_url(f"**/ui/sessions/{session.id}")
        await expect(page.raw.get_by_role("main")).to_contain_text(session.id)
        await page.raw.go_back()
        await expect(line).to_be_visible()
    await expect(page.text("There is no session.")).to_be_visible()
    await page.field("State").select_option("ended")
    await expect(row(page, "conv-1")).to_contain_text("deleted")


async def test_a_session_is_made_prolonged_and_ended(page: WatchedPage, api: Api) -> None:
    await page.get("button", "New session").click()
    form = page.get("dialog", "New session")
    await expect(form.get_by_role("combobox", name="Environment")).to_have_value("base")
    await expect(form.get_by_role("combobox", name="Environment")).to_be_focused()
    await form.get_by_label("Thread").fill("made here")
    await form.get_by_text("Image and limits").click()
    await form.get_by_label("Memory (MiB)").fill("300")
    await form.get_by_text("Time-outs").click()
    await form.get_by_label("Ends when it was not used for").fill("20")
    await form.get_by_text("Network", exact=True).click()
    await form.get_by_label("Only what is named here").check()
    await form.get_by_label("Allowed, one on each line").fill("api.example.com\n*.example.org:443\n")
    await form.get_by_text("Metadata", exact=True).click()
    await form.get_by_label("Notes of your own").fill("no equals sign")
    await form.get_by_role("button", name="Create").click()
    await expect(form.get_by_role("alert")).to_contain_text("name=value")
    await form.get_by_label("Notes of your own").fill("user=u-7\nnote=a=b")
    await form.get_by_role("button", name="Create").click()
    await page.raw.wait_for_url(re.compile("/ui/sessions/ses_"))

    (made,) = (await api.get("/api/sessions", thread_id="made here"))["sessions"]
    assert made["limits"]["memory_mb"] == 300
    assert made["idle_timeout_s"] == 1200
    assert made["network"]["allow"] == ["api.example.com", "*.example.org:443"]
    assert made["metadata"] == {"user": "u-7", "note": "a=b"}

    await page.get("link", "Sessions", exact=True).click()
    line = row(page, "made here")
    await line.get_by_role("button", name="Prolong").click()
    dialog = page.get("dialog", "Prolong the session")
    await dialog.get_by_label("Ends when it was not used for").fill("45")
    await dialog.get_by_role("button", name="Change the time-outs").click()
    await expect(line).to_contain_text("44 min")
    await line.get_by_role("button", name="Prolong").click()
    await dialog.get_by_role("button", name="Begin the idle time anew").click()
    await expect(dialog).to_have_count(0)

    await line.get_by_role("button", name="End").click()
    await page.get("button", "Cancel").click()
    await expect(line).to_be_visible()
    await line.get_by_role("button", name="End").click()
    await page.get("button", "End the session").click()
    await expect(page.text("There is no session.")).to_be_visible()
    assert (await api.get("/api/sessions"))["sessions"] == []


async def test_what_the_server_refuses_is_said_in_the_form(page: WatchedPage) -> None:
    page.expected.append("status of 4")
    await page.get("button", "New session").click()
    form = page.get("dialog", "New session")
    await form.get_by_text("Image and limits").click()
    await form.get_by_label("Image", exact=True).fill("no-such-image")
    await form.get_by_role("button", name="Create").click()
    await expect(form.get_by_role("alert")).to_contain_text("no-such-image")
    await page.raw.keyboard.press("Escape")
    await expect(form).to_have_count(0)
    await expect(page.get("button", "New session")).to_be_focused()


async def test_filters_and_search(page: WatchedPage, api: Api, visit: Visit, new_key: NewKey) -> None:
    other_key = await new_key("other")
    async with (
        api.session(thread_id="alpha", metadata={"team": "Blue"}) as alpha,
        api.session(thread_id="beta", environment="host"),
        Api(api.url, {"X-API-Key": other_key}) as others,
        others.session(thread_id="of another tenant"),
    ):
        await expect(rows(page)).to_have_count(2)
        await page.field("Search").fill("blue")
        await expect(rows(page)).to_have_count(1)
        await expect(row(page, "alpha")).to_be_visible()
        await page.raw.reload()
        await expect(page.field("Search")).to_have_value("blue")
        await expect(rows(page)).to_have_count(1)
        await page.field("Search").fill("")
        await page.field("Environment").select_option("host")
        await expect(row(page, "beta")).to_be_visible()
        await expect(rows(page)).to_have_count(1)
        await page.field("Environment").select_option("")
        # An administrator sees those of all, and changes only their own.
        await page.field("Tenant").select_option("*")
        await expect(rows(page)).to_have_count(3)
        line = row(page, "of another tenant")
        await expect(line).to_contain_text(re.compile(r"\d [KM]iB"))
        await expect(line.get_by_role("button")).to_have_count(0)
        await expect(line.get_by_role("link")).to_have_count(0)

        theirs = await visit(other_key)
        await expect(rows(theirs)).to_have_count(1)
        await theirs.goto("/ui/sessions?of=*")
        theirs.expected += ["status of 403", "status of 404"]
        await expect(theirs.raw.get_by_role("alert")).to_be_visible()
        await theirs.goto(f"/ui/sessions/{alpha.id}")
        await expect(theirs.get("heading", "There is no such session")).to_be_visible()
        await expect(theirs.raw.get_by_role("main")).not_to_contain_text("alpha")


async def test_texts_of_users_are_shown_as_text(page: WatchedPage, api: Api) -> None:
    async with api.session(thread_id=HOSTILE, metadata={"note": HOSTILE, HOSTILE: "x"}):
        await expect(row(page, HOSTILE)).to_be_visible()
        await page.get("button", "End ses_").click()
        await expect(page.get("dialog", "End the session?")).to_contain_text(HOSTILE)
        assert await page.raw.locator("main img, dialog img").count() == 0
    async with api.session(metadata={"file": "a\u202etxt.exe"}):  # else it looks like another name
        await expect(page.text("file=a\\u202etxt.exe")).to_be_visible()


async def test_it_fits_a_phone_in_both_colours(visit: Visit, api: Api, admin_key: str) -> None:
    long_name = "a-thread-with-a-name-that-is-much-longer-than-any-telephone-is-wide-" * 2
    async with api.session(thread_id=long_name, metadata={"note": "n" * 300}):
        for colours in ("light", "dark"):
            page = await visit(admin_key, viewport={"width": 360, "height": 740}, color_scheme=colours)
            await expect(row(page, long_name)).to_be_visible()
            await page.get("button", "New session").click()
            assert await page.raw.evaluate("document.documentElement.scrollWidth") <= 360
            ground = await page.raw.evaluate("getComputedStyle(document.body).backgroundColor")
            assert (int(re.findall(r"\d+", ground)[0]) > 128) == (colours == "light")


async def test_the_keyboard_and_a_screen_reader_reach_everything(page: WatchedPage, api: Api) -> None:
    async with api.session(thread_id="by hand"):
        await expect(row(page, "by hand")).to_be_visible()
        assert await page.unnamed_controls() == []
        await page.raw.keyboard.press("Tab")
        await expect(page.get("link", "Skip to the page")).to_be_focused()
        await page.raw.keyboard.press("Enter")
        await expect(page.raw.get_by_role("main")).to_be_focused()
        await page.raw.keyboard.press("Tab")
        await expect(page.get("button", "New session")).to_be_focused()
        await page.raw.keyboard.press("Enter")
        for summary in await page.get("dialog", "New session").locator("summary").all():
            await summary.press("Enter")
        assert await page.unnamed_controls() == []
        await page.raw.keyboard.press("Escape")
        await expect(page.get("button", "New session")).to_be_focused()
        end = row(page, "by hand").get_by_role("button", name="End")
        await end.press("Enter")
        await expect(page.get("button", "Cancel")).to_be_focused()
        await page.raw.keyboard.press("Enter")
        await expect(end).to_be_focused()
