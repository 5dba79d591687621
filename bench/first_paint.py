"""Measures how soon a browser shows the dashboard: first contentful paint on loopback, beside a bare page.

    sudo .venv/bin/python bench/first_paint.py             20 loads of each
    sudo .venv/bin/python bench/first_paint.py --loads 5   fewer

A load is a new context of one running Chromium, which has nothing in its cache; "again" is a second load in the same
context. The bare page is one line of HTML from a server that does nothing else: what it takes is Chromium's own, and
what the dashboard takes beyond it is Warren's. "Waiting for the server" is the time from the request to the first byte
of the answer, of the page and of everything it must load before it is painted. Loads of both take turns, so that a busy
machine slows both down. Times are the browser's own, from the start of the navigation.
"""

import argparse
import statistics
import sys
import tempfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, Final

from playwright.sync_api import Browser, Page, sync_playwright
from service_server import serving
from table import Table

CHROMIUM: Final = "/usr/bin/chromium"
MAX_MS: Final = 300.0
BARE: Final = b"<!doctype html><title>bare</title><h1>Sessions</h1>"
_TIMES: Final = """async (text) => {
    const frame = () => new Promise(requestAnimationFrame);
    while (!document.body?.innerText.includes(text)) await frame();
    const shown = performance.now();
    while (!performance.getEntriesByName("first-contentful-paint").length) await frame();
    const [page] = performance.getEntriesByType("navigation");
    const painted = performance.getEntriesByName("first-contentful-paint")[0].startTime;
    const files = performance.getEntriesByType("resource").filter((one) => one.responseEnd <= painted);
    const waits = [page, ...files].map((one) => one.requestStart ? one.responseStart - one.requestStart : 0);
    return {painted, shown, waited: waits.reduce((sum, one) => sum + one, 0)};
}"""

Times = dict[str, float]


class BarePage(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(BARE)))
        self.end_headers()
        self.wfile.write(BARE)

    def log_message(self, format: str, *args: object) -> None:
        pass


def load(page: Page, url: str, text: str) -> Times:
    page.goto(url, wait_until="commit")
    times: Times = page.evaluate(_TIMES, text)
    return times


def load_in_turns(browser: Browser, places: dict[str, tuple[str, str]], loads: int) -> dict[str, list[Times]]:
    found: dict[str, list[Times]] = {}
    for round_ in range(loads + 1):  # the first load warms the browser and the server up
        for name, (url, text) in places.items():
            context = browser.new_context()
            page = context.new_page()
            for times in ("", ", again"):
                measured = load(page, url, text)
                if round_:
                    found.setdefault(name + times, []).append(measured)
            context.close()
    return found


def shown(values: list[float]) -> str:
    return f"{statistics.median(values):.0f} / {min(values):.0f} ms"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loads", type=int, default=20)
    loads = parser.parse_args(arguments).loads
    bare = ThreadingHTTPServer(("127.0.0.1", 0), BarePage)
    Thread(target=bare.serve_forever, daemon=True).start()
    table = Table()
    with (
        serving("--pool-size", "1", WARREN_AUTH="false") as server,
        tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as folder,
        sync_playwright() as playwright,
    ):
        options: dict[str, Any] = {"executable_path": CHROMIUM, "args": ["--no-sandbox"], "env": {"TMPDIR": folder}}
        browser = playwright.chromium.launch(**options)
        places = {
            "dashboard": (f"http://127.0.0.1:{server.port}/", "There is no session."),
            "bare page": (f"http://127.0.0.1:{bare.server_port}/", "Sessions"),
        }
        found = load_in_turns(browser, places, loads)
        print(f"Chromium {browser.version}, {loads} loads of each: median / best", flush=True)
        for name, measured in found.items():
            painted = [one["painted"] for one in measured]
            is_ours = name.startswith("dashboard")
            met = statistics.median(painted) <= MAX_MS if is_ours else None
            table.add(f"{name}: first contentful paint", shown(painted), f"<= {MAX_MS:.0f} ms" if is_ours else "", met)
            table.add(f"{name}: of it, waiting for the server", shown([one["waited"] for one in measured]))
            if is_ours:
                table.add(f"{name}: until the sessions are shown", shown([one["shown"] for one in measured]))
        browser.close()
    bare.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
