"""A page of the browser, and everything that went wrong in it."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Self

from e2e.api_client import Api
from playwright.async_api import BrowserContext, ConsoleMessage, Dialog, Locator, Page, Request, Response, expect

CHROMIUM: Final = "/usr/bin/chromium"
PICTURES: Final = Path(__file__).parents[2] / "build" / "pictures"
_OWN_FILES: Final = re.compile(r"/ui/static/|/ui/?$|/embed/")
_PATIENCE_MS: Final = 20_000  # the machine may be busy with other tests
_REPORT_VIOLATIONS: Final = """
document.addEventListener("securitypolicyviolation", (event) =>
    console.error(`policy violated: ${event.violatedDirective} ${event.blockedURI} ${event.sample}`));
"""

_UNNAMED: Final = """
[...document.querySelectorAll("button, a[href], input, select, textarea, summary, [role=tab]")]
    .filter((it) => it.checkVisibility())
    .filter((it) => !(it.ariaLabel || it.labels?.length || it.innerText?.trim() || it.ariaLabelledByElements?.length))
    .map((it) => it.outerHTML)
"""

expect.set_options(timeout=_PATIENCE_MS)


class WatchedPage:
    """`raw` is Playwright's page; what tests use often is here under short names."""

    def __init__(self, raw: Page) -> None:
        self.raw = raw
        self.expected: list[str] = []
        """Patterns of lines in the console that the test causes on purpose."""
        self._problems: list[str] = []

    @classmethod
    async def make(cls, context: BrowserContext) -> Self:
        context.set_default_timeout(_PATIENCE_MS)
        await context.add_init_script(_REPORT_VIOLATIONS)
        page = cls(await context.new_page())
        page.raw.on("console", page._on_console)
        page.raw.on("pageerror", lambda error: page._problems.append(f"exception: {error}"))
        page.raw.on("requestfailed", page._on_failed)
        page.raw.on("response", page._on_response)
        page.raw.on("dialog", page._on_dialog)
        return page

    async def sign_in(self, url: str, key: str) -> None:
        """As a person who follows the link that `warren ui` prints."""
        async with Api(url, {"X-API-Key": key}) as api, api.ask("POST", "/api/ui/links") as answer:
            assert answer.status < 300, await answer.text()
            link = (await answer.json())["url"]
        await self.raw.goto(link)
        await self.raw.wait_for_url(re.compile(r"/ui/(?!enter)"))

    async def goto(self, place: str) -> None:
        await self.raw.goto(place)

    def get(self, role: Any, name: str, **rest: Any) -> Locator:
        """By what a screen reader says it is."""
        return self.raw.get_by_role(role, name=name, **rest)

    def text(self, text: str, **rest: Any) -> Locator:
        return self.raw.get_by_text(text, **rest)

    def field(self, label: str, **rest: Any) -> Locator:
        return self.raw.get_by_label(label, **rest)

    async def unnamed_controls(self) -> list[str]:
        """Those that a screen reader has no name for."""
        found: list[str] = await self.raw.evaluate(_UNNAMED)
        return found

    async def picture(self, name: str) -> Path:
        """Takes a picture of the whole page into build/pictures."""
        PICTURES.mkdir(parents=True, exist_ok=True)
        path = PICTURES / f"{name}.png"
        await self.raw.screenshot(path=path, full_page=True)
        return path

    def problems(self) -> Iterator[str]:
        for problem in self._problems:
            if not any(re.search(pattern, problem) for pattern in self.expected):
                yield f"{self.raw.url}: {problem}"

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self._problems.append(f"console: {message.text} ({message.location.get('url', '')})")

    def _on_failed(self, request: Request) -> None:
        if _OWN_FILES.search(request.url) and request.failure != "net::ERR_ABORTED":
            self._problems.append(f"failed: {request.url} {request.failure}")

    def _on_response(self, response: Response) -> None:
        if response.status >= 400 and "/ui/static/" in response.url:
            self._problems.append(f"missing: {response.url} {response.status}")

    async def _on_dialog(self, dialog: Dialog) -> None:
        self._problems.append(f"dialog: {dialog.type} {dialog.message}")
        await dialog.dismiss()
