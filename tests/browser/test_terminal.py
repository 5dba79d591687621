"""Terminals of a session's page: typing, sizes, coming back, several people, and what a sandbox tries with them."""

import re
from collections.abc import AsyncIterator

import pytest
from browser.conftest import Visit
from browser.watched_page import WatchedPage
from e2e.api_client import Api, SessionApi
from playwright.async_api import Locator, expect

pytestmark = pytest.mark.anyio


@pytest.fixture
async def session(api: Api) -> AsyncIterator[SessionApi]:
    async with api.session() as session:
        yield session


class Shell:
    """The terminal that a page shows."""

    def __init__(self, page: WatchedPage) -> None:
        self.page = page

    @property
    def screen(self) -> Locator:
        return self.page.raw.locator(".terminal:visible .xterm-rows")

    async def open(self) -> "Shell":
        await self.page.get("button", "New terminal").click()
        await self.says(r"[$#] *$")
        return self

    async def type(self, text: str) -> None:
        await self.page.raw.keyboard.type(text)
        await self.page.raw.keyboard.press("Enter")

    async def says(self, pattern: str) -> None:
        await expect(self.screen).to_contain_text(re.compile(pattern, re.MULTILINE))


def place(session: SessionApi, tab: str = "terminal") -> str:
    return f"/ui/sessions/{session.id}?tab={tab}"


async def test_typing_in_a_terminal_and_coming_back_to_it_after_a_reload(
    visit: Visit, admin_key: str, session: SessionApi
) -> None:
    page = await visit(admin_key, place(session))
    shell = await Shell(page).open()
    await shell.type("KEPT=yes; echo $((6 * 7)) in $PWD")
    await shell.says("42 in /workspace")
    await page.raw.reload()
    await shell.says("42 in /workspace")
    await expect(page.text("Connected", exact=True)).to_be_visible()
    await page.raw.locator(".xterm-screen").click()
    await shell.type("echo kept=$KEPT")
    await shell.says("kept=yes")
    await page.picture("terminal")
