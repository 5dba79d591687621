"""The tabs of a session: code with charts, ports, network, artifacts, figures, record, isolation."""

import base64
import io
import json
import shutil
import sys
import tarfile
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from browser.conftest import Visit
from browser.watched_page import WatchedPage
from e2e.api_client import Api, SessionApi
from local_names import LocalNames
from playwright.async_api import expect
from server_process import ServerProcess, running_server
from this_run import new_state_dir

PACKAGES = next((Path(__file__).parents[2] / "build/code-venv/lib").glob("python3*/site-packages"), Path("missing"))
DRAWING = (
    "numpy", "numpy.libs", "matplotlib", "mpl_toolkits", "PIL", "pillow.libs", "cycler", "dateutil", "kiwisolver",
    "contourpy", "pyparsing", "packaging", "six.py", "fontTools", "pandas", "tzdata",
)  # fmt: skip
pytestmark = [pytest.mark.anyio, pytest.mark.extended]

HIT = "window.hit = 1; alert(1)"
EVIL = f"<img src=x onerror='{HIT}'><script>{HIT}</script>"
DRAW_ALL = """
import math
plt.bar(['a', 'b', 'c'], [1, 2, -1]); plt.show()
plt.pie([1, 3], labels=['x', 'y']); plt.show()
plt.boxplot([[1, 2, 3, 4, 10], [2, 3, 4]]); plt.show()
plt.scatter([1, 2, 3], [3, math.nan, 5]); plt.yscale('log'); plt.show()
figure, (left, right) = plt.subplots(1, 2); left.plot([1, 2]); right.barh(['q'], [3]); plt.show()
"""
PICTURE = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
NARROW = {"width": 360, "height": 740}


@pytest.fixture(scope="module")
def server(image_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Names below `example` lead to this machine's loopback, which its sandboxes may reach if their rules say so."""
    path = new_state_dir(image_cache)
    serve = (sys.executable, "-m", "warren.cli.main", "serve")
    options = {"WARREN_AUTH": "true", "WARREN_MIN_FREE_MEMORY_MB": "1", "WARREN_ENVIRONMENT": "host"}
    options |= {"WARREN_EGRESS_NETWORKS": "127.0.0.0/8", "WARREN_POOL_SIZE": "1", "WARREN_POOL_MIN": "0"}
    with (
        LocalNames(tmp_path_factory.mktemp("names"), "example") as names,
        running_server(path, argv=names.command(serve), **options) as server,
    ):
        yield server
    assert list((path / "sandboxes").glob("*")) == []
    shutil.rmtree(path)


HOSTILE_CHARTS = """
def chart(kind, elements, **rest): display({"chart": {"type": kind, "elements": elements, **rest}}, raw=True)
chart("line", [{"points": [[1e300, 1], [-1e300, 2]]}], x_scale="datetime")
chart("line", [{"points": [[8.64e15, 1], [-8.64e15, 2]]}], x_scale="datetime")
chart("scatter", [{"points": [[1.7e308, -1.7e308], [-1.7e308, 1.7e308], ["Infinity", "NaN"], [1, 2]]}])
chart("line", [{"points": [[5e-324, 5e-324], [1e308, 1e308]]}], x_scale="log", y_scale="log")
chart("bar", [{"label": {}, "value": "1e999", "group": []}, {"label": "a", "value": -1.7e308}, None, 7])
chart("pie", [{"angle": 1.7e308}, {"angle": 1.7e308}])
chart("box_and_whisker", [{"min": 1.7e308, "max": -1.7e308, "outliers": [1e999]}])
chart("scatter", [{"points": [[x, y] for x in range(100)]} for y in range(200)])
names = ["n%d" % at for at in range(20_000)]
chart("line", [{"points": [["m", 1]] * 20_000}] * 2, x_scale="categorical", x_tick_labels=names)
inner = {"type": "scatter", "elements": [{"points": [[x, x] for x in range(300)]}]}
for _ in range(3): inner = {"type": "superchart", "elements": [inner] * 8}
chart("superchart", [inner])
chart({"toString": 1}, [{}])
print("all shown")
"""


@pytest.fixture
async def session(api: Api) -> AsyncIterator[SessionApi]:
    async with api.session(environment="host") as session:
        yield session


@pytest.fixture(scope="module")
def destination() -> Iterator[int]:
    """The port of a server on loopback."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"reached")

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


def place(session: SessionApi, tab: str) -> str:
    return f"/ui/sessions/{session.id}?tab={tab}"


async def run_cell(page: WatchedPage, number: int, code: str, keys: str = "Control+Enter") -> None:
    await page.field(f"Code of cell {number}").fill(code)
    await page.field(f"Code of cell {number}").press(keys)


def packed_libraries() -> bytes:
    """What draws, as it is installed for the tests of contexts. The sandbox's Python must be of the same version."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name in DRAWING:
            if (PACKAGES / name).exists():
                tar.add(PACKAGES / name, name, filter=_without_tests)
    return packed.getvalue()


def _without_tests(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    parts = Path(member.name).parts
    if "tests" in parts or "__pycache__" in parts:
        return None
    member.uid = member.gid = 0
    return member


async def test_a_cell_draws_a_chart(session: SessionApi, page: WatchedPage) -> None:
    assert PACKAGES.exists(), "`make code-venv` installs what these cells import"
    await session.call("PUT", "/files/archive", data=packed_libraries(), path="/workspace/lib", status=201)
    await page.goto(place(session, "code"))
    code = (
        "import sys; sys.path.insert(0, '/workspace/lib')\nimport matplotlib.pyplot as plt\n"
        f"plt.plot([1, 2, 3], [2, 4, 8], label='alpha'); plt.plot([3, 1], label={EVIL!r})\n"
        "plt.title('Growth'); print('\\x1b[32mdrawn\\x1b[0m'); plt.show()"
    )
    await run_cell(page, 1, code, "Shift+Enter")
    await expect(page.field("Code of cell 2")).to_be_focused()
    picture = page.get("img", "The picture that the cell has drawn")
    await expect(picture).to_be_visible(timeout=60_000)
    assert await picture.evaluate("picture => picture.decode().then(() => picture.naturalWidth)") > 100
    await expect(page.text("drawn", exact=True)).to_be_visible()
    await page.get("button", "Chart").click()
    await expect(page.get("img", f"Growth: alpha, {EVIL}")).to_be_visible()
    assert await page.raw.locator(".chart path.stroke").count() == 2
    await page.get("button", "Save as artifact").click()
    await expect(page.text("Saved as artifact cell-1-2.chart.json")).to_be_visible()

    await run_cell(page, 2, DRAW_ALL, "Shift+Enter")
    await expect(page.raw.get_by_label("Cell 2", exact=True).get_by_role("img")).to_have_count(5, timeout=60_000)
    for button in await page.raw.get_by_label("Cell 2", exact=True).get_by_role("button", name="Chart").all():
        await button.click()
    for kind in ("bar chart", "pie chart: x 25 %, y 75 %", "box and whisker chart", "scatter chart", "line chart"):
        await expect(page.get("img", kind).last).to_be_visible()
    drawn = "".join(await page.raw.locator(".chart svg").evaluate_all("all => all.map(one => one.outerHTML)"))
    assert "NaN" not in drawn
    assert "Infinity" not in drawn
    assert drawn.count("<svg") == 7  # one of two axes

    await run_cell(page, 3, "import pandas; pandas.DataFrame({'name': ['a', 'b'], 'size': [1, 2]})", "Shift+Enter")
    await expect(page.get("region", "Table").get_by_role("cell", name="b")).to_be_visible(timeout=60_000)
    await run_cell(page, 4, "def fail():\n    1 / 0\nfail()", "Shift+Enter")
    await expect(page.text("ZeroDivisionError: division by zero", exact=True)).to_be_visible()
    await run_cell(page, 5, "import time\nprint('waits', flush=True)\ntime.sleep(600)")
    await expect(page.text("waits", exact=True)).to_be_visible()
    await page.get("button", "Interrupt cell 5").click()
    await expect(page.text("KeyboardInterrupt").first).to_be_visible()
    await page.picture("code")

    await page.raw.reload()
    await expect(page.field("Code of cell 4")).to_have_value("def fail():\n    1 / 0\nfail()")


async def test_charts_that_no_library_has_made_do_no_harm(session: SessionApi, page: WatchedPage) -> None:
    await page.goto(place(session, "code"))
    await run_cell(page, 1, HOSTILE_CHARTS)
    cell = page.raw.get_by_label("Cell 1", exact=True)
    await expect(cell.locator(".result, .note", has_text="A result without content")).to_be_visible(timeout=60_000)
    await expect(cell.get_by_text("all shown", exact=True)).to_be_visible()
    drawn = "".join(await cell.locator("svg").evaluate_all("all => all.map(one => one.outerHTML)"))
    assert "NaN" not in drawn
    assert "Infinity" not in drawn
    assert 1000 < drawn.count("<circle") < 20_000
    await expect(page.field("Code of cell 1")).to_be_editable()


async def test_contexts_are_made_restarted_and_deleted(session: SessionApi, page: WatchedPage) -> None:
    await page.goto(place(session, "code"))
    await run_cell(page, 1, "kept = 6")
    await expect(page.raw.locator(".contexts .state")).to_have_text("idle")
    await run_cell(page, 1, "kept * 7")
    await expect(page.text("42", exact=True)).to_be_visible()
    await page.get("button", "New context").click()
    await expect(page.text("A new context is ready")).to_be_visible()
    await run_cell(page, 1, "kept")
    await expect(page.text("NameError: name 'kept' is not defined", exact=True)).to_be_visible()
    await page.get("button", "Delete", exact=True).click()
    await expect(page.text("The context has ended")).to_be_visible()
    await page.get("button", "Restart").click()
    await expect(page.text("The context is empty again")).to_be_visible()
    await page.get("combobox", "Context").select_option("ctx_bash")
    await run_cell(page, 1, "echo $((40 + 2)) in bash")
    await expect(page.text("42 in bash", exact=True)).to_be_visible()


async def test_cells_wait_for_their_turn_and_leave_room_for_an_interrupt(
    session: SessionApi, page: WatchedPage
) -> None:
    await page.goto(place(session, "code"))
    await run_cell(page, 1, "import time; print('begun', flush=True); time.sleep(600)", "Shift+Enter")
    for number in range(2, 9):  # more than a browser has connections to a server
        await run_cell(page, number, f"print('turn', {number})", "Shift+Enter")
    await expect(page.text("begun", exact=True)).to_be_visible()
    await expect(page.text("Waits for the cell before it.")).to_have_count(7)
    await page.get("button", "Interrupt cell 3").click()
    await page.get("button", "Interrupt cell 1").click()
    await expect(page.text("turn 8", exact=True)).to_be_visible()
    await expect(page.text("turn 3", exact=True)).not_to_be_visible()


async def test_a_refused_connection_is_seen_and_allowed(page: WatchedPage, api: Api, destination: int) -> None:
    async with api.session(environment="host", network={"allow": ["other.example"]}) as session:
        await page.goto(place(session, "network"))
        await expect(page.text("Nothing was refused.")).to_be_visible()
        ask = f"curl -sS -m 10 http://models.example:{destination}/"
        assert (await session.exec(ask))["exit_code"] != 0
        row = page.get("row", "models.example")
        await expect(row.get_by_role("cell").nth(2)).to_have_text(str((await session.get("/network"))["refused"]))
        await page.get("button", "Allow models.example").click()
        await expect(page.text("allowed now")).to_be_visible()
        await expect(page.field("Allowed, one in a line")).to_have_value("other.example\nmodels.example")
        assert await session.output(ask) == "reached"

        await page.field("Allowed, one in a line").fill("*.example:1\nnot a rule")
        page.expected.append("422")
        await page.get("button", "Change the rules").click()
        await expect(page.raw.locator(".message.error")).to_contain_text("not a rule")
        await page.field("Allowed, one in a line").fill("*.example:1")
        await page.get("button", "Change the rules").click()
        await expect(page.text("The new rules hold")).to_be_visible()
        assert (await session.get("/network"))["allow"] == ["*.example:1"]
        await page.goto("about:blank")


async def test_ports_open_by_links_that_can_be_revoked(session: SessionApi, page: WatchedPage) -> None:
    await session.write(
        "index.html", b"<title>of a stranger</title><script>document.title += ' ' + window.opener</script>"
    )
    await session.start("python3 -m http.server 3000")
    await session.get("/ports", wait_for=3000)
    await page.goto(place(session, "ports"))
    async with page.raw.context.expect_page() as opened:
        await page.get("button", "Open port 3000 in a new tab").click()
    preview = await opened.value
    await expect(preview).to_have_title("of a stranger null")
    link = await page.raw.get_by_label("Link to port 3000").input_value()
    page.expected.append("403")
    await page.get("button", "Make port 3000 public").click()
    await expect(page.text("this server has no public previews")).to_be_visible()
    await page.get("button", "Revoke all links").click()
    await page.get("button", "Revoke", exact=True).click()
    await expect(page.raw.get_by_label("Link to port 3000")).not_to_be_visible()
    answer = await preview.goto(link)
    assert answer is not None
    assert answer.status == 403


async def test_artifacts_are_saved_shown_and_deleted(session: SessionApi, page: WatchedPage) -> None:
    await session.exec("mkdir out; echo 42 > out/answer.txt; head -c 100 /dev/zero > out/zeros.bin")
    await session.write("out/dot.png", PICTURE)
    await page.goto(place(session, "artifacts"))
    await page.field("Files, directories or globs to save, one in a line").fill("out/*\nmissing.txt")
    await page.get("button", "Save", exact=True).click()
    await expect(page.text("Saved: 3 files")).to_be_visible()
    await expect(page.raw.locator(".message.error")).to_contain_text("missing.txt")
    await page.get("button", "Show out/answer.txt").click()
    await expect(page.get("dialog", "out/answer.txt")).to_contain_text("42")
    await page.raw.keyboard.press("Escape")
    await page.get("button", "Show out/zeros.bin").click()
    await expect(page.text("This is not text. Download it.")).to_be_visible()
    await page.raw.keyboard.press("Escape")
    await page.get("button", "Show out/dot.png").click()
    assert await page.get("img", "out/dot.png").evaluate("one => one.decode().then(() => one.naturalWidth)") == 1
    await page.raw.keyboard.press("Escape")
    async with page.raw.expect_download() as saved:
        await page.get("button", "Download out/answer.txt").click()
    assert (await (await saved.value).path()).read_text() == "42\n"
    await page.get("button", "Delete out/answer.txt").click()
    await page.get("button", "Delete", exact=True).click()
    await expect(page.get("button", "Show out/answer.txt")).not_to_be_visible()


async def test_what_strangers_write_stays_text(page: WatchedPage, api: Api) -> None:
    async with api.session(environment="host", thread_id=EVIL, metadata={"note": EVIL}) as session:
        await page.goto(place(session, "details"))
        await expect(page.text(EVIL).first).to_be_visible()

        start = "<svg xmlns='http://www.w3.org/2000/svg' width='40' height='40'"
        svg = f"{start} onload='{HIT}'><script>{HIT}</script></svg>"
        formats = {
            "text/html": EVIL, "text/markdown": EVIL, "image/svg+xml": svg, "text/plain": EVIL, "text/latex": EVIL,
            "application/javascript": HIT, "application/json": {EVIL: EVIL}, "text/x-other": EVIL,
        }  # fmt: skip
        code = f"import sys, json\nsys.stderr.write({EVIL!r})\n"
        code += f"display(json.loads({json.dumps(json.dumps(formats))}), raw=True)\n"
        code += (
            f"class Frame:\n    def _repr_html_(self): return {EVIL!r}\ndisplay(Frame())\nraise ValueError({EVIL!r})"
        )
        await page.goto(place(session, "code"))
        await run_cell(page, 1, code)
        await expect(page.get("img", "The drawing that the cell has made")).to_be_visible(timeout=60_000)
        for name in ("HTML source", "Markdown", "JavaScript source", "LaTeX", "JSON", "More", "Text"):
            await page.get("button", name).first.click()
            await expect(page.raw.locator(".result").first).to_contain_text("window.hit")
        await expect(page.raw.locator(".raised-error")).to_contain_text("ValueError: <img")

        await session.exec(
            ["sh", "-c", 'mkdir out; printf %s "$0" > "out/$1"', EVIL, "<img src=x onerror=alert(1)>.html"]
        )
        await session.post("/artifacts", {"paths": ["out"]}, status=201)
        await page.goto(place(session, "artifacts"))
        await page.get("button", "Show out/<img src=x onerror=alert(1)>.html").click()
        await expect(page.get("dialog", "out/<img src=x onerror=alert(1)>.html")).to_contain_text(EVIL)
        await page.goto(place(session, "record"))
        await expect(page.get("table", "Audit record")).to_contain_text(EVIL)
        assert await page.raw.evaluate("window.hit") is None
        assert await page.raw.locator("main img, main script, main iframe").count() == 0
        await page.goto("about:blank")


async def test_figures_are_drawn_in_every_look(session: SessionApi, visit: Visit, admin_key: str) -> None:
    await session.exec("head -c 30000000 /dev/urandom > big; sync")
    looks = ({"color_scheme": "light"}, {"color_scheme": "dark"}, {"color_scheme": "dark", "viewport": NARROW})
    for number, look in enumerate(looks):
        page = await visit(admin_key, place(session, "figures"), **look)
        plot = page.raw.get_by_role("img", name="Memory over")
        await expect(plot).to_be_visible()
        assert "the limit is 512 MiB" in str(await plot.get_attribute("aria-label"))
        await expect(page.raw.locator(".plot canvas")).to_have_count(5)
        await expect(page.get("list", "Now")).to_contain_text("of 1.0 GiB")
        assert await page.raw.evaluate("document.documentElement.scrollWidth <= innerWidth")
        await expect(page.get("tab", "Figures")).to_be_in_viewport(ratio=1)
        await page.picture(f"figures-{number}")


async def test_the_record_tells_events_and_commands(session: SessionApi, page: WatchedPage) -> None:
    await session.exec("exit 7")
    await page.goto(place(session, "record"))
    row = page.get("table", "Audit record").get_by_role("row").filter(has_text="exit 7")
    await expect(row.get_by_role("cell", name="7", exact=True)).to_be_visible()
    await session.write("note", b"x")
    await session.post("/artifacts", {"paths": ["note"]}, status=201)
    await expect(page.get("table", "Events")).to_contain_text("artifact.created")
    await page.field("Action").select_option("create_session")
    await expect(row).not_to_be_visible()
    await expect(page.get("table", "Audit record").get_by_role("row")).to_have_count(2)


async def test_the_isolation_is_stated(session: SessionApi, page: WatchedPage) -> None:
    await page.goto(place(session, "isolation"))
    await expect(page.get("region", "In force", exact=True)).to_contain_text("The kernel filters its system calls")
    await expect(page.get("region", "Not in force")).to_contain_text("guest kernel")
    await expect(page.raw.locator(".facts")).to_contain_text("512 MiB")


async def test_who_may_only_look_gets_no_buttons(session: SessionApi, visit: Visit, api: Api) -> None:
    tenant = (await api.get("/api/whoami"))["tenant"]
    wanted = {"name": "looks", "tenant": tenant, "scopes": ["read"]}
    key = (await api.post("/api/admin/keys", wanted, status=201))["key"]
    page = await visit(key, place(session, "code"))
    await expect(page.get("button", "Run cell 1")).to_be_disabled()
    await expect(page.get("button", "New context")).not_to_be_visible()
    await page.goto(place(session, "network"))
    await expect(page.text("Rules", exact=True)).to_be_visible()
    await expect(page.get("button", "Change the rules")).not_to_be_visible()
