"""A terminal as a person sees and uses it in a page."""

import itertools
import re

from browser.watched_page import WatchedPage
from playwright.async_api import Locator, expect

PROMPT = r"[$#]\s*$"
_NUMBERS = itertools.count(1)


class Shell:
    def __init__(self, page: WatchedPage) -> None:
        self.page = page

    @property
    def screen(self) -> Locator:
        return self.page.raw.locator(".terminal:visible .xterm-rows")

    async def open(self) -> "Shell":
        await self.page.get("button", "New terminal").click()
        await self.says(PROMPT)
        return self

    async def type(self, text: str) -> None:
        await self.page.raw.keyboard.type(text)
        await self.page.raw.keyboard.press("Enter")

    async def press(self, *keys: str) -> None:
        for key in keys:
            await self.page.raw.keyboard.press(key)

    async def focus(self) -> None:
        await self.page.raw.locator(".terminal:visible .xterm-screen").click()

    async def says(self, pattern: str) -> None:
        await expect(self.screen).to_contain_text(re.compile(pattern))

    async def lines(self) -> list[str]:
        rows = await self.screen.locator("> div").all_inner_texts()
        return [row.replace("\xa0", " ").rstrip() for row in rows]

    async def size(self) -> tuple[int, int]:
        """Rows and columns, as the program in the terminal sees them."""
        mark = f"size{next(_NUMBERS)}"  # what another page has asked may still be on the screen
        await self.type(f"clear; echo {mark}=$(stty size | tr ' ' x).")
        await self.says(rf"{mark}=\d+x\d+\.")
        found = re.search(rf"{mark}=(\d+)x(\d+)\.", "\n".join(await self.lines()))
        assert found is not None
        return int(found[1]), int(found[2])
