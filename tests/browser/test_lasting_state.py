"""State that lasts: sessions are paused, resumed and forked, snapshots and volumes made and used, logs followed."""

import re

import pytest
from browser.conftest import Visit
from browser.shell import Shell
from browser.watched_page import WatchedPage
from e2e.api_client import Api, SessionApi, until
from playwright.async_api import Locator, expect

pytestmark = [pytest.mark.anyio, pytest.mark.extended]

HOSTILE = "<img src=x onerror=alert(1)>"


def place(session: SessionApi, tab: str = "") -> str:
    return f"/ui/sessions/{session.id}" + (f"?tab={tab}" if tab else "")


def row(page: WatchedPage, table: str, text: str) -> Locator:
    return page.get("table", table).get_by_role("row").filter(has_text=text)


def header(page: WatchedPage) -> Locator:
    return page.raw.locator(".session-head")


async def stays_paused(session: SessionApi) -> None:
    assert (await session.show())["state"] == "paused"


async def test_a_session_is_paused_and_its_terminal_goes_on(page: WatchedPage, api: Api) -> None:
    async with api.session(max_paused_s=7200) as session:
        await page.goto(place(session))
        shell = await Shell(page).open()
        await shell.type("kept=on; echo $kept-screen")
        await shell.says("on-screen")
        await header(page).get_by_role("button", name="Pause").click()
        await expect(header(page).locator(".state")).to_have_text("paused")
        await expect(header(page)).to_contain_text(re.compile(r"Paused for\s*\d+ s"))
        await expect(header(page)).to_contain_text(re.compile(r"Ends in\s*(2 h|1 h 59 min)"))
        await expect(page.text("This session is paused: its terminals")).to_be_visible()
        for tab in ("Files", "Processes", "Code", "Ports"):
            await page.get("tab", tab).click()
            await expect(page.text("This session is paused: its terminals")).to_be_visible()
        for tab in ("Network", "Volumes", "Artifacts", "Figures", "Logs", "Record", "Isolation", "Details"):
            await page.get("tab", tab).click()
            await expect(page.get("tabpanel", tab)).not_to_be_empty()
        assert await page.unnamed_controls() == []
        await page.raw.reload()
        await page.get("tab", "Terminal").click()
        await expect(page.text("This session is paused: its terminals")).to_be_visible()
        await stays_paused(session)
        await page.get("button", "Resume this session").click()
        await expect(header(page).locator(".state")).to_have_text("running")
        await shell.says("on-screen")
        await shell.focus()
        await shell.type("echo still-$kept")
        await shell.says("still-on")


async def test_a_session_is_paused_from_the_list(page: WatchedPage, api: Api) -> None:
    async with api.session(thread_id="to be paused") as session:
        line = row(page, "Sessions", "to be paused")
        await line.get_by_role("button", name="Pause").click()
        await expect(line.locator(".state")).to_have_text("paused")
        await expect(line).to_contain_text(re.compile(r"for \d+ s"))
        await expect(line).to_contain_text(re.compile(r"6 d 23 h|7 d"))
        await page.field("State").select_option("paused")
        await expect(line).to_be_visible()
        assert await page.unnamed_controls() == []
        await session.exec("true")  # a use from elsewhere resumes it
        await expect(line).to_have_count(0)
        await page.field("State").select_option("")
        await line.get_by_role("button", name="Pause").press("Enter")
        await expect(line.get_by_role("button", name="Resume")).to_be_focused()
        await page.raw.keyboard.press("Enter")
        await expect(line.locator(".state")).to_have_text("running")


async def test_a_hibernated_session_comes_back_with_its_files(page: WatchedPage, api: Api) -> None:
    async with api.session(thread_id="asleep") as session:
        await session.write("a.txt", b"kept")
        await session.post("/pause", {"to_disk": True})
        line = row(page, "Sessions", "asleep")
        await expect(line.locator(".state")).to_have_text("hibernated")
        await page.field("State").select_option("hibernated")
        await line.get_by_role("link").click()
        await expect(header(page)).to_contain_text(re.compile(r"Paused for\s*\d+ s"))
        for tab in ("Terminal", "Files", "Processes", "Code", "Ports", "Figures"):
            await page.get("tab", tab).click()
            await expect(page.text("This session is hibernated: its files are kept")).to_be_visible()
        for tab in ("Network", "Volumes", "Artifacts", "Logs", "Record", "Isolation", "Details"):
            await page.get("tab", tab).click()
            await expect(page.get("tabpanel", tab)).not_to_be_empty()
            await expect(page.raw.get_by_role("alert")).to_have_count(0)
        await page.get("tab", "Files").click()
        assert (await session.show())["state"] == "hibernated"
        await page.get("button", "Resume this session").click()
        await expect(header(page).locator(".state")).to_have_text("running")
        await expect(page.text("a.txt")).to_be_visible()


async def test_what_is_not_saved_survives_a_pause(page: WatchedPage, api: Api) -> None:
    async with api.session() as session:
        await session.write("a.txt", b"as it was")
        await page.goto(place(session, "files"))
        await page.text("a.txt").click()
        await page.field("Text", exact=True).fill("changed here")
        await session.post("/pause")
        await expect(header(page).locator(".state")).to_have_text("paused")
        await expect(page.field("Text", exact=True)).to_have_value("changed here")
        await page.get("button", "Save", exact=True).click()
        await expect(header(page).locator(".state")).to_have_text("running")
        assert await session.read("a.txt") == b"changed here"


async def test_forks_have_the_files_of_their_session(page: WatchedPage, api: Api) -> None:
    async with api.session() as session:
        await session.write("a.txt", b"from one point")
        await page.goto(place(session, "details"))
        await page.get("button", "Fork").click()
        await page.get("dialog", "Fork the session").get_by_label("How many").fill("2")
        await page.get("dialog", "Fork the session").get_by_role("button", name="Fork").click()
        links = page.get("dialog", "Forks").get_by_role("link")
        await expect(links).to_have_count(2)
        assert await page.unnamed_controls() == []
        ids = await links.all_inner_texts()
        await links.first.click()
        await page.raw.wait_for_url(f"**/ui/sessions/{ids[0]}")
        await expect(page.get("dialog", "Forks")).to_have_count(0)
        await page.get("tab", "Details").click()
        await expect(page.get("tabpanel", "Details")).to_contain_text(session.id)
        for one in ids:
            assert await api.get(f"/api/sessions/{one}/files/content", path="a.txt") == b"from one point"
            await api.call("DELETE", f"/api/sessions/{one}")


async def test_a_snapshot_is_saved_started_carried_and_deleted(page: WatchedPage, api: Api) -> None:
    async with api.session() as session:
        await session.write("a.txt", b"installed")
        await page.goto(place(session, "details"))
        await page.get("button", "Snapshot").click()
        form = page.get("dialog", "Save a snapshot")
        await form.get_by_label("Name").fill("not a name")
        page.expected.append("status of 4")
        await form.get_by_role("button", name="Save").click()
        await expect(form.get_by_role("alert")).to_be_visible()
        await form.get_by_label("Name").fill("ready")
        await form.get_by_label("Deleted after (days)").fill("2")
        await form.get_by_role("button", name="Save").click()
        await expect(page.text("Saved as ready.")).to_be_visible()
        await page.get("link", "Snapshots", exact=True).click()
        line = row(page, "Snapshots", "ready")
        await expect(line).to_contain_text(session.id)
        await expect(line).to_contain_text(re.compile(r"in (2 d|1 d 23 h)"))
        assert await page.unnamed_controls() == []

    await line.get_by_role("button", name="Start a session").click()
    form = page.get("dialog", "New session")
    await expect(form.get_by_label("Starts from the snapshot")).to_have_value("ready")
    await expect(form.get_by_role("combobox", name="Environment")).to_have_value("")
    await form.get_by_role("button", name="Create").click()
    await page.raw.wait_for_url(re.compile("/ui/sessions/ses_"))
    (started,) = (await api.get("/api/sessions"))["sessions"]
    content = f"/api/sessions/{started['session_id']}/files/content"
    assert await api.get(content, path="a.txt") == b"installed"
    await page.get("link", "Snapshots", exact=True).click()
    await api.call("DELETE", f"/api/sessions/{started['session_id']}")
    async with page.raw.expect_download() as saved:
        await line.get_by_role("button", name="Download").click()
    downloaded = await saved.value
    assert downloaded.suggested_filename == "ready.warren-snapshot"
    await line.get_by_role("button", name="Delete").click()
    await page.get("button", "Delete it").click()
    await expect(page.text("There is no snapshot.")).to_be_visible()

    await page.get("button", "Upload").click()
    form = page.get("dialog", "Upload a snapshot")
    assert await page.unnamed_controls() == []
    await form.get_by_label("File").set_input_files(await downloaded.path())
    await form.get_by_label("Name").fill("again")
    await form.get_by_role("button", name="Upload").click()
    await expect(row(page, "Snapshots", "again")).to_be_visible()
    async with api.session(snapshot="again") as session:
        assert await session.read("a.txt") == b"installed"
    await api.call("DELETE", "/api/snapshots/again", status=204)
    await expect(page.text("There is no snapshot.")).to_be_visible()


async def test_a_volume_is_made_attached_used_and_deleted(page: WatchedPage, api: Api) -> None:
    await page.goto("/ui/volumes")
    await expect(page.text("There is no volume.")).to_be_visible()
    await page.get("button", "New volume").click()
    form = page.get("dialog", "New volume")
    await form.get_by_label("Name").fill("cache")
    await form.get_by_label("Size (MiB)").fill("32")
    await form.get_by_role("button", name="Make the volume").click()
    line = row(page, "Volumes", "cache")
    await expect(line).to_contain_text("32.0 MiB")
    await expect(line).to_contain_text("nobody")
    assert await page.unnamed_controls() == []

    async with api.session() as session:
        await page.goto(place(session, "volumes"))
        await page.get("button", "Attach a volume").click()
        form = page.get("dialog", "Attach a volume")
        assert await page.unnamed_controls() == []
        await form.get_by_label("Volume", exact=True).fill("cache")
        await form.get_by_label("Path in the sandbox").fill("/workspace/data")
        await form.get_by_role("button", name="Attach").click()
        await expect(row(page, "Volumes of this session", "cache")).to_contain_text("/workspace/data")
        await page.get("tab", "Terminal").click()
        shell = await Shell(page).open()
        await shell.type("df -P | grep -c /workspace/data; echo kept > /workspace/data/file && echo wro''te")
        await shell.says(r"1\s*wrote")
        assert await session.output("cat data/file") == "kept\n"

        await page.goto("/ui/volumes")
        await expect(line.get_by_role("link", name=session.id)).to_be_visible()
        page.expected.append("409")
        await line.get_by_role("button", name="Delete").click()
        await page.get("button", "Delete it").click()
        await expect(page.raw.get_by_role("alert")).to_contain_text(session.id)
        await page.get("button", "Cancel").click()

        await page.goto(place(session, "volumes"))
        await page.get("button", "Detach cache").click()
        await page.get("button", "Detach it").click()
        await expect(page.text("It has no volume.")).to_be_visible()
        assert (await session.exec("cat data/file"))["exit_code"] != 0

    await page.goto("/ui/volumes")
    await page.get("button", "Grow cache").click()
    await page.get("dialog", "Grow cache").get_by_label("Size (MiB)").fill("48")
    await page.get("dialog", "Grow cache").get_by_role("button", name="Grow").click()
    await expect(line).to_contain_text("48.0 MiB")

    await page.goto("/ui/sessions")
    await page.get("button", "New session").click()
    form = page.get("dialog", "New session")
    await form.get_by_text("Snapshot, volumes and log").click()
    await form.get_by_label("Add a volume").select_option("cache")
    await form.get_by_label("Log that is kept").select_option("commands")
    await form.get_by_text("Time-outs", exact=True).click()
    await form.get_by_label("What happens when it was not used").select_option("pause")
    await form.get_by_label("Ends when it was paused for (hours)").fill("3")
    await form.get_by_role("button", name="Create").click()
    await page.raw.wait_for_url(re.compile("/ui/sessions/ses_"))
    (made,) = (await api.get("/api/sessions"))["sessions"]
    assert (made["on_idle"], made["max_paused_s"], made["logs"]) == ("pause", 10800, "commands")
    content = f"/api/sessions/{made['session_id']}/files/content"
    assert await api.get(content, path="/workspace/cache/file") == b"kept\n"
    await page.goto("/ui/volumes")
    await api.call("DELETE", f"/api/sessions/{made['session_id']}")
    await expect(line).to_contain_text("nobody")
    await line.get_by_role("button", name="Delete").click()
    await page.get("button", "Delete it").click()
    await expect(page.text("There is no volume.")).to_be_visible()


async def test_a_thread_of_another_kind_is_refused_or_replaced(page: WatchedPage, api: Api) -> None:
    first = await api.post("/api/sessions", {"thread_id": "kinds"}, status=201)
    await page.get("button", "New session").click()
    form = page.get("dialog", "New session")
    await expect(form.get_by_label("If that one is of another kind")).to_have_count(0)
    await form.get_by_label("Thread").fill("kinds")
    await form.get_by_role("combobox", name="Environment").select_option("host")
    page.expected.append("409")
    await form.get_by_role("button", name="Create").click()
    await expect(form.get_by_role("alert")).to_contain_text("environment")
    await form.get_by_label("If that one is of another kind").select_option("replace")
    await form.get_by_role("button", name="Create").click()
    await page.raw.wait_for_url(re.compile("/ui/sessions/ses_"))
    (made,) = (await api.get("/api/sessions"))["sessions"]
    assert made["environment"] == "host"
    assert made["session_id"] != first["session_id"]
    await page.goto("/ui/sessions")
    await api.call("DELETE", f"/api/sessions/{made['session_id']}")


async def test_a_log_is_followed_searched_kept_and_deleted(page: WatchedPage, api: Api) -> None:
    async with api.session(logs="output") as session:
        await session.exec("echo first")
        await page.goto(place(session, "logs"))
        log = page.get("log", "Log of this session")
        await expect(log).to_contain_text("first")
        await session.exec(f"echo '{HOSTILE}'; echo trouble >&2; exit 3")  # it comes while the page is open
        await expect(log.locator("pre.error")).to_have_text(re.compile("trouble"))
        await expect(log).to_contain_text(HOSTILE)
        await expect(log).to_contain_text("ended with 3")
        assert await page.unnamed_controls() == []
        await page.field("Search in what is shown").fill("TROUBLE")
        await expect(log).not_to_contain_text("first")
        await expect(log).to_contain_text("trouble")
        await page.field("Search in what is shown").fill("")
        await page.get("combobox", "Show").select_option("output")
        await expect(log).to_contain_text("first")
        await expect(log).not_to_contain_text("ended with 3")
        await page.get("combobox", "Show").select_option("")
    await expect(page.text("The session has ended: nothing more comes.")).to_be_visible()
    await page.raw.reload()
    await expect(log).to_contain_text("ended with 3")
    await expect(page.text("It is deleted at")).to_be_visible()
    async with page.raw.expect_download() as saved:
        await page.get("button", "Download as text").click()
    text = (await (await saved.value).path()).read_text()
    assert f"  | {HOSTILE}\n" in text
    assert "  ! trouble\n" in text
    await page.get("button", "Delete the log").click()
    await page.get("button", "Delete it").click()
    await expect(page.text("There is nothing yet.")).to_be_visible()
    assert (await api.get(f"/api/sessions/{session.id}/logs"))["entries"] == []


async def test_a_long_log_begins_with_its_newest_entries(page: WatchedPage, api: Api) -> None:
    async with api.session(logs="commands") as session:
        for number in range(300):
            await session.exec(f": {number}.")

        async def logged() -> bool:
            newest = (await session.get("/logs", last=1))["entries"]
            return bool(newest and newest[0]["id"] >= 600)

        await until(logged)
        await page.goto(place(session, "logs"))
        log = page.get("log", "Log of this session")
        await expect(log).to_contain_text(": 299.")
        await expect(log).not_to_contain_text(": 0.")
        await page.get("button", "Older").click()
        await expect(log).to_contain_text(": 0.")
        await expect(page.get("button", "Older")).to_have_count(0)
        await expect(log.locator(".log-entry")).to_have_count(600)


async def test_who_may_only_look_changes_nothing(page: WatchedPage, visit: Visit, api: Api) -> None:
    tenant = (await api.get("/api/whoami"))["tenant"]
    wanted = {"name": "looks", "tenant": tenant, "scopes": ["read"]}
    key = (await api.post("/api/admin/keys", wanted, status=201))["key"]
    async with api.session(thread_id="looked at") as session:
        await session.post("/snapshots", {"name": "seen"}, status=201)
        await api.post("/api/volumes", {"name": "seen", "size_mb": 16}, status=201)
        theirs = await visit(key)
        await expect(row(theirs, "Sessions", "looked at")).to_be_visible()
        for where, shown in (
            ("/ui/sessions", "looked at"),
            (place(session, "logs"), "Nothing is kept of this session"),
            (place(session, "volumes"), "It has no volume."),
            ("/ui/snapshots", "seen"),
            ("/ui/volumes", "seen"),
        ):
            await theirs.goto(where)
            await expect(theirs.text(shown).first).to_be_visible()
            for name in ("Pause", "Fork", "Snapshot", "Delete", "Download seen", "Upload", "Start", "Attach", "Grow"):
                await expect(theirs.get("button", name)).to_have_count(0)
        await expect(page.get("button", f"Pause {session.id}")).to_be_visible()
    await api.call("DELETE", "/api/snapshots/seen", status=204)
    await api.call("DELETE", "/api/volumes/seen", status=204)


async def test_the_new_pages_fit_a_phone(visit: Visit, admin_key: str, api: Api) -> None:
    async with api.session(logs="output", thread_id="small") as session:
        await session.exec("echo " + "x" * 500)
        await session.post("/snapshots", {"name": "n" * 64}, status=201)
        await api.post("/api/volumes", {"name": "v" * 128, "size_mb": 16}, status=201)
        page = await visit(admin_key, viewport={"width": 360, "height": 740})
        places = ((place(session, "logs"), "xxxx"), ("/ui/snapshots", "nnnn"), ("/ui/volumes", "vvvv"))
        for where, shown in places:
            await page.goto(where)
            await expect(page.text(shown).first).to_be_visible()
            assert await page.raw.evaluate("document.documentElement.scrollWidth") <= 360
    await api.call("DELETE", f"/api/snapshots/{'n' * 64}", status=204)
    await api.call("DELETE", f"/api/volumes/{'v' * 128}", status=204)
