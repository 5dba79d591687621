"""What strangers can do with a browser that is signed in: pages of sandboxes at the same address and beside it, other
sites, frames. Chromium itself decides here what it sends and what it refuses."""

import contextlib
import http.server
import json
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from e2e.api_client import Api, SessionApi
from playwright.async_api import Browser, BrowserContext, Frame
from server_process import ServerProcess

pytestmark = [pytest.mark.anyio, pytest.mark.extended]

PORT = 3000
# Tries everything that a page with the dashboard's origin could do, and tells in its title what became of it.
EVIL = b"""<!doctype html><body><script>
const socket = location.href.replace("http", "ws").replace(/[/]ports[/].*/, "/terminal");
const tries = {
    origin: () => self.origin,
    cookie: () => (document.cookie = "__Host-warren=planted; Secure; Path=/"),
    storage: () => localStorage.length,
    read: () => fetch("/api/whoami", { credentials: "include" }).then((answer) => answer.status),
    blind: () => fetch("/api/whoami", { mode: "no-cors", credentials: "include" }).then((answer) => answer.type),
    change: () => fetch("/api/sessions", { method: "POST", credentials: "include", body: "{}" }),
    pretend: () => fetch("/api/ui/links", { method: "POST", headers: { "X-Warren-Page": "1" } }),
    socket: () => new Promise((good, bad) => Object.assign(new WebSocket(socket), { onopen: good, onerror: bad })),
    worker: () => navigator.serviceWorker.register("worker.js"),
};
(async () => {
    const told = {};
    for (const [name, attempt] of Object.entries(tries)) {
        try { told[name] = String(await attempt()); } catch (error) { told[name] = "refused"; }
    }
    document.title = JSON.stringify(told);
})();
</script>"""


@pytest.fixture
async def signed_in(browser: Browser, server: ServerProcess, admin_key: str) -> AsyncIterator[BrowserContext]:
    """A browser that is signed in, under the name under which it finds previews by host as well."""
    base = f"http://localhost:{server.port}"
    context = await browser.new_context(base_url=base)
    page = await context.new_page()
    await page.goto("/ui/sign-in")
    sign_in = """key => fetch("/api/ui/sign-in", {method: "POST", headers: {"X-Warren-Page": "1"},
                 body: JSON.stringify({key})}).then(answer => answer.status)"""
    assert await page.evaluate(sign_in, admin_key) == 200
    [cookie] = await context.cookies()
    assert (cookie["name"], cookie["secure"], cookie["httpOnly"]) == ("__Host-warren", True, True)
    assert await page.evaluate("fetch('/api/whoami').then(answer => answer.status)") == 200
    yield context
    await context.close()


@pytest.fixture
async def session(api: Api) -> AsyncIterator[SessionApi]:
    async with api.session() as session:
        await session.write("index.html", EVIL)
        await session.write("worker.js", b"")
        await session.start(f"python3 -m http.server --bind 127.0.0.1 {PORT}")
        await session.get("/ports", wait_for=PORT)
        yield session


async def tried(context: BrowserContext, url: str) -> dict[str, str]:
    page = await context.new_page()
    await page.goto(url)
    await page.wait_for_function("document.title.startsWith('{')")
    told: dict[str, str] = json.loads(await page.title())
    return told


async def test_a_preview_by_path_has_no_origin_and_can_use_nothing(
    signed_in: BrowserContext, server: ServerProcess, session: SessionApi
) -> None:
    token = (await session.post("/links", {"port": PORT}, status=201))["token"]
    place = f"/api/sessions/{session.id}/ports/{PORT}/?warren_token={token}"
    told = await tried(signed_in, f"http://localhost:{server.port}{place}")
    assert told.pop("origin") == "null"
    assert set(told.values()) == {"refused"}, told


async def test_a_preview_by_host_is_another_place(
    signed_in: BrowserContext, server: ServerProcess, session: SessionApi
) -> None:
    link = (await session.post("/links", {"port": PORT}, status=201))["url"].replace("127.0.0.1", "localhost")
    told = await tried(signed_in, link)
    host = f"{PORT}-{session.id.removeprefix('ses_')}.localhost:{server.port}"
    assert told["origin"] == f"http://{host}"
    assert told["read"] == "404"  # of the server inside the sandbox, as is all else that it reached
    page = await signed_in.new_page()
    await page.goto(link.partition("?")[0])
    other = f"http://localhost:{server.port}/api/whoami"
    assert await page.evaluate(f"fetch('{other}', {{credentials: 'include'}}).catch(() => 'refused')") == "refused"


async def test_a_file_that_is_opened_is_saved_and_never_shown(
    signed_in: BrowserContext, server: ServerProcess, session: SessionApi
) -> None:
    page = await signed_in.new_page()
    await page.goto("/ui/sessions")
    place = f"/api/sessions/{session.id}/files/content?path=index.html"
    async with page.expect_download() as saved:
        await page.evaluate(f"location.href = '{place}'")
    assert (await (await saved.value).path()).read_bytes() == EVIL


@contextlib.contextmanager
def another_site() -> Iterator[str]:
    """A page of somebody else with a frame in it, whose site is not the server's."""

    class Site(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b'<iframe id="frame"></iframe>')

        def log_message(self, *arguments: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Site) as site:
        threading.Thread(target=site.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{site.server_port}"
        site.shutdown()


async def framed(context: BrowserContext, site: str, url: str) -> Frame | None:
    """The frame that shows this address, if the browser shows it."""
    page = await context.new_page()
    await page.goto(site)
    async with page.expect_event("framenavigated", lambda frame: frame.parent_frame is not None):
        await page.evaluate("url => { document.getElementById('frame').src = url; }", url)
    frame = page.frames[1]
    await frame.wait_for_load_state()
    return frame if frame.url.partition("?")[0] == url.partition("?")[0] else None


EMBEDDED = """async (ticket) => {
    const body = JSON.stringify({ ticket });
    const answer = await fetch("/api/ui/tickets/redeem", { method: "POST", body, credentials: "omit" });
    const { session_id, token } = await answer.json();
    const url = `ws://${location.host}/api/sessions/${session_id}/terminal`;
    const socket = new WebSocket(url, ["warren", `warren.token.${token}`]);
    const first = await new Promise((good, bad) => Object.assign(socket, { onmessage: good, onerror: bad }));
    const used = await fetch("/api/ui/tickets/redeem", { method: "POST", body, credentials: "omit" });
    const cookie = await fetch("/api/whoami", { credentials: "include" });
    return [socket.protocol, JSON.parse(first.data).type, used.status, cookie.status];
}"""


async def test_only_named_sites_show_a_terminal_in_a_frame_and_nobody_the_dashboard(
    signed_in: BrowserContext, server: ServerProcess, session: SessionApi
) -> None:
    with another_site() as site:

        async def ticket(origin: str) -> str:
            made = await session.post("/tickets", {"origins": [origin]}, status=201)
            return str(made["url"]).replace("127.0.0.1", "localhost")

        assert await framed(signed_in, site, f"http://localhost:{server.port}/ui/sessions") is None
        assert await framed(signed_in, site, await ticket("https://another.example")) is None
        frame = await framed(signed_in, site, await ticket(site))
        assert frame is not None
        another = (await ticket(site)).partition("=")[2]  # the page has used its own
        assert await frame.evaluate(EMBEDDED, another) == ["warren", "started", 401, 401]
