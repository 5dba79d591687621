"""The dashboard in a real browser (Debian's Chromium) against a real `warren serve` that asks for keys.

    (cd web && node build.mjs) && .venv/bin/python -m pytest tests/browser -p no:xdist

A test is async and asks for fixtures:

- `server`: of the module, on oci (or what its PROVIDER says), with the kept images; `server.url`, `server.stop()`,
  `server.start()`.
- `admin_key`, and `api`: a client of the server with that key, for what a test prepares or checks by HTTP.
- `new_key(tenant, *scopes)`: makes another key. Without scopes it has the usual ones.
- `visit(key=…, place=…, **options)`: a page in a browser of its own (no cookie is shared), signed in by a one-time link
  if a key is given. `options` go to Playwright's new_context: `color_scheme="dark"`, `viewport={…}`.
- `page`: what `visit` gives for the administrator.

At the end of a test every page is looked at: an error in the console, an exception, a refused or missing file of the
dashboard, a violation of the content security policy or a dialog (what an injected script would open) fails the test.
`page.expected.append(pattern)` lets a test say which lines of the console it means to cause: Chromium reports every
answer of 400 and above there. The pages of a failed test are pictured in build/pictures.
"""

import contextlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from browser.watched_page import CHROMIUM, WatchedPage
from e2e.api_client import Api
from playwright.async_api import Browser, BrowserContext, async_playwright
from server_process import ServerProcess, running_server
from this_run import new_state_dir

import warren

Visit = Callable[..., Awaitable[WatchedPage]]
NewKey = Callable[..., Awaitable[str]]

FAR_NAME = "warren.test"
"""Leads to the server as well, but for the browser it is a name like any other: without TLS, nothing is secure."""
_FAILED = pytest.StashKey[bool]()
_STATIC = Path(warren.__file__).parent / "http" / "dashboard" / "static" / "index.html"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    if report.failed:
        item.stash[_FAILED] = True
    return report


@pytest.fixture(scope="module")
def server(image_cache: Path, request: pytest.FixtureRequest) -> Iterator[ServerProcess]:
    assert _STATIC.exists(), "the dashboard is not built: run `node build.mjs` in web/"
    path = new_state_dir(image_cache)
    settings = {"WARREN_AUTH": "true", "WARREN_MIN_FREE_MEMORY_MB": "1", "WARREN_ALLOWED_HOSTS": FAR_NAME}
    provider = getattr(request.module, "PROVIDER", "oci")
    with running_server(path, provider=provider, **settings) as server:
        yield server
    left = list((path / "sandboxes").glob("*"))
    shutil.rmtree(path, ignore_errors=True)
    assert left == []


@pytest.fixture(scope="module")
def admin_key(server: ServerProcess) -> str:
    (key,) = json.loads(server.credentials.read_text()).values()
    return str(key)


@pytest.fixture
async def api(server: ServerProcess, admin_key: str) -> AsyncIterator[Api]:
    async with Api(server.url, {"X-API-Key": admin_key}) as api:
        yield api


@pytest.fixture
def new_key(api: Api) -> NewKey:
    async def make(tenant: str, *scopes: str) -> str:
        body = {"name": "test", "tenant": tenant, **({"scopes": scopes} if scopes else {})}
        return str((await api.post("/api/admin/keys", body, status=201))["key"])

    return make


@pytest.fixture(scope="module")
async def browser() -> AsyncIterator[Browser]:
    # Chromium leaves directories of its own behind when it is ended in the wrong moment: they go with this one.
    with tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as folder:
        async with async_playwright() as playwright:
            # The pages are Warren's own; Chromium's sandbox does not start for root.
            browser = await playwright.chromium.launch(
                executable_path=CHROMIUM,
                args=["--no-sandbox", f"--host-resolver-rules=MAP {FAR_NAME} 127.0.0.1"],
                env={**os.environ, "TMPDIR": folder},
            )
            yield browser
            await browser.close()


@pytest.fixture
async def visit(browser: Browser, server: ServerProcess, request: pytest.FixtureRequest) -> AsyncIterator[Visit]:
    pages: list[WatchedPage] = []
    contexts: list[BrowserContext] = []

    async def open_page(key: str = "", place: str = "/ui/sessions", **options: Any) -> WatchedPage:
        contexts.append(await browser.new_context(base_url=server.url, **options))
        pages.append(await WatchedPage.make(contexts[-1]))
        if key:
            await pages[-1].sign_in(server.url, key)
        await pages[-1].goto(place)
        return pages[-1]

    yield open_page
    problems = [problem for page in pages for problem in page.problems()]
    if problems or request.node.stash.get(_FAILED, False):
        name = re.sub(r"[^\w.-]+", "-", request.node.nodeid.removeprefix("tests/browser/"))
        for number, page in enumerate(pages, 1):
            with contextlib.suppress(Exception):  # the page may be closed; the failure is what counts
                await page.picture(f"failed-{name}-{number}")
    for context in contexts:
        await context.close()
    assert not problems, "\n".join(problems)


@pytest.fixture
async def page(visit: Visit, admin_key: str) -> WatchedPage:
    return await visit(admin_key)
