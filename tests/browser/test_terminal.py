"""Terminals of a session's page: typing, sizes, coming back, several people, and what a sandbox tries with them."""

import asyncio
import base64
import re
from collections.abc import AsyncIterator

import pytest
from browser.conftest import FAR_NAME, NewKey, Visit
from browser.shell import PROMPT, Shell
from browser.watched_page import WatchedPage
from e2e.api_client import Api, SessionApi
from marks import first_of
from playwright.async_api import expect
from server_process import ServerProcess

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)  # before the pages, which are closed before it ends
async def session(api: Api) -> AsyncIterator[SessionApi]:
    async with api.session() as session:
        yield session


@pytest.fixture
async def shell(visit: Visit, admin_key: str, session: SessionApi) -> Shell:
    return await Shell(await visit(admin_key, place(session))).open()


def place(session: SessionApi, tab: str = "terminal") -> str:
    return f"/ui/sessions/{session.id}?tab={tab}"


async def test_a_terminal_is_found_again_after_a_reload_with_its_screen(shell: Shell, session: SessionApi) -> None:
    page = shell.page
    await shell.type("KEPT=yes; echo $((6 * 7)) in $PWD")
    await shell.says("42 in /workspace")
    await page.raw.reload()
    await shell.says("42 in /workspace")
    await expect(page.text("Connected", exact=True)).to_be_visible()
    await shell.focus()
    await shell.type("echo kept=$KEPT")
    await shell.says("kept=yes")
    assert len((await session.get("/processes"))["processes"]) == 1


@pytest.mark.extended
async def test_a_reload_in_the_middle_of_a_full_screen_program_shows_it_and_types_nothing(shell: Shell) -> None:
    await shell.type("top -d 0.5")
    await shell.says(r"Tasks:.*total")
    await shell.page.raw.reload()
    await shell.says(r"Tasks:.*total")
    await shell.focus()
    await shell.press("q")
    await shell.says(PROMPT)  # a program that ends throws away what was typed before
    await shell.type("echo ba''ck")
    await shell.says("back")
    # nano asks what the terminal is. Had the page answered again what was asked before, the answers would stand here.
    await shell.type("nano note")
    await shell.says("GNU nano")
    await shell.page.raw.reload()
    await shell.says("GNU nano")
    await shell.focus()
    await shell.page.raw.keyboard.type("written")
    await shell.press("Control+o", "Enter", "Control+x")
    await shell.says(PROMPT)
    await shell.type("clear; cat note; echo e''nd")
    await shell.says("end")
    assert "written" in await shell.lines()


async def test_the_terminal_has_the_size_of_the_window(shell: Shell) -> None:
    await shell.page.raw.set_viewport_size({"width": 1000, "height": 700})
    await shell.page.raw.wait_for_timeout(400)
    rows, columns = await shell.size()
    await shell.page.raw.set_viewport_size({"width": 700, "height": 900})
    await shell.page.raw.wait_for_timeout(400)
    more_rows, fewer_columns = await shell.size()
    assert more_rows > rows
    assert fewer_columns < columns


@pytest.mark.extended
async def test_two_pages_at_one_terminal_see_the_same_in_the_size_of_the_one_that_is_used(
    shell: Shell, visit: Visit, admin_key: str, session: SessionApi
) -> None:
    await shell.type("echo fi''rst")
    await shell.says("first")
    viewport = {"width": 700, "height": 600}
    other = Shell(await visit(admin_key, place(session), viewport=viewport))
    await other.says("first")
    await other.focus()
    rows, columns = await other.size()
    await expect(shell.page.text(f"{columns}×{rows}")).to_be_visible()
    assert len(await shell.lines()) == rows
    await shell.focus()
    await shell.type("echo sec''ond")
    await other.says("second")
    assert await shell.size() != (rows, columns)
    await expect(other.page.text("Another page has set the size")).to_be_visible()


@pytest.mark.extended
async def test_nobody_stops_the_browsers_of_others_by_the_size_of_a_terminal(
    shell: Shell, session: SessionApi, api: Api
) -> None:
    await shell.type("echo fi''rst")
    await shell.says("first")
    (process,) = (await session.get("/processes"))["processes"]
    await session.post(f"/processes/{process['process_id']}/resize", {"rows": 9999, "columns": 9999}, status=204)
    await expect(shell.page.text("9999×9999")).to_be_visible()
    assert len(await shell.lines()) <= 300
    await shell.page.get("button", "Use the size of this page").click()
    await shell.focus()
    assert await shell.size() < (200, 300)


async def test_several_terminals_and_ending_one(shell: Shell, session: SessionApi) -> None:
    page = shell.page
    await shell.type("echo in-''one")
    await shell.says("in-one")
    await page.get("button", "New terminal").click()
    await page.get("tab", "Shell 2").wait_for()
    await shell.says(r"[$#]\s*$")
    await shell.type("echo in-''two")
    await shell.says("in-two")
    await page.get("tab", "Shell 1").click()
    await shell.says("in-one")
    await page.get("button", "Close Shell 2").click()
    await page.get("button", "End it").click()
    await expect(page.get("tab", "Shell 2")).to_have_count(0)
    async with asyncio.timeout(20):
        while len((await session.get("/processes"))["processes"]) != 1:
            await asyncio.sleep(0.1)
    await shell.focus()
    await shell.type("exit 3")
    await expect(page.text("It ended with 3.")).to_be_visible()


@pytest.mark.extended
async def test_the_terminal_comes_back_when_the_server_does_and_nothing_comes_twice(
    shell: Shell, server: ServerProcess, session: SessionApi
) -> None:
    page = shell.page
    page.expected.append(r"ERR_|WebSocket|Failed to load")
    await shell.type("for i in $(seq 60); do echo line-$i-; sleep 0.1; done; echo fin''ished")
    await shell.says("line-3-")
    await asyncio.to_thread(server.kill)
    await expect(page.text("comes back by itself")).to_be_visible()
    await asyncio.to_thread(server.start)
    await shell.says("finished")
    text = "\n".join(await shell.lines())
    shown = [int(number) for number in re.findall(r"line-(\d+)-", text)]
    assert shown == list(range(shown[0], 61))
    await shell.type("echo st''ill")
    await shell.says("still")


@pytest.mark.extended
async def test_endless_output_waits_for_the_page_and_can_be_interrupted(shell: Shell, session: SessionApi) -> None:
    await shell.type("yes 'much output, much output, much output'")
    await shell.says("much output")
    await shell.page.raw.wait_for_timeout(4000)
    grown = await shell.page.raw.evaluate("performance.memory.usedJSHeapSize")
    await shell.page.raw.wait_for_timeout(4000)
    assert await shell.page.raw.evaluate("performance.memory.usedJSHeapSize") < grown + 60_000_000
    await shell.press("Control+c")
    await shell.type("clear; echo sto''pped")
    await shell.says("stopped")


@pytest.mark.parametrize(
    "sequence",
    first_of(
        [
            r"\033]52;c;%s\a" % base64.b64encode(b"stolen").decode(),  # noqa: UP031
            r"\033]0;a title\a\033]1;a title\a\033]2;a title\a",
            r"\033]9;a notification\a\033]777;notify;a;b\a\033]99;;a\a",
            r"\033]1337;File=inline=1:%s\a" % base64.b64encode(b"<svg/onload=alert(1)>").decode(),  # noqa: UP031
            r"\033]8;;javascript:alert(1)\aclick\033]8;;\a <img src=x onerror=alert(1)>",
            r"\033[21t\033[20t\033]2;\n id > /workspace/pwned \n\a\033[21t",
            r"\033P$qm\033\\\033[6n\033[c\033[>c",
            r"\033[8;200;9999t\033[3;0;0t\033[5t",
            r"\033[?2004h\033[?1000h\033[?1003h\033[?1006h\033[38;2;1;2;3;48;2;9;9;9mcolours\033[0m",
        ]
    ),
)
async def test_sequences_of_the_sandbox_reach_neither_clipboard_nor_title_nor_shell(
    visit: Visit, admin_key: str, session: SessionApi, server: ServerProcess, sequence: str
) -> None:
    page = await visit(admin_key, place(session), permissions=["clipboard-read", "clipboard-write"])
    shell = await Shell(page).open()
    await page.raw.evaluate("navigator.clipboard.writeText('mine')")
    before, size = await page.raw.title(), page.raw.viewport_size
    await session.write("attack", f"printf '{sequence}'\n".encode())
    await shell.focus()
    await shell.type("bash attack; echo ov''er")
    await shell.says("over")
    await page.raw.wait_for_timeout(300)
    assert await page.raw.evaluate("navigator.clipboard.readText()") == "mine"
    assert await page.raw.title() == before
    assert page.raw.viewport_size == size
    assert await session.output("ls") == "attack\n"
    # Whatever the page has answered, the shell still works.
    await shell.press("Control+c")
    await shell.type("clear; printf '\\033[?1000l\\033[?1003l\\033[?1006l'; echo fi''ne")
    await shell.says("fine")


@pytest.mark.extended
async def test_links_are_opened_after_a_question_that_shows_where_they_lead(
    visit: Visit, admin_key: str, session: SessionApi
) -> None:
    page = await visit(admin_key, place(session))
    shell = await Shell(page).open()
    link = "http://127.0.0.1:1/true?where=here"
    await session.write("links", f"\\033]8;;{link}\\ahttps://bank.example\\033]8;;\\a\\n".encode())
    await shell.type('clear; printf "$(cat links)"; echo; echo sho""wn')
    await shell.says("shown")
    await page.raw.locator(".xterm-rows").get_by_text("https://bank.example").first.click(force=True)
    dialog = page.get("dialog", "Open this address?")
    await expect(dialog).to_contain_text(link)
    button = dialog.get_by_role("link")
    assert await button.get_attribute("href") == link
    assert await button.get_attribute("rel") == "noopener noreferrer"
    assert await button.get_attribute("target") == "_blank"
    assert len(page.raw.context.pages) == 1
    await dialog.get_by_role("button", name="Cancel").click()


@pytest.mark.extended
async def test_what_is_pasted_cannot_press_keys(visit: Visit, admin_key: str, session: SessionApi) -> None:
    page = await visit(admin_key, place(session), permissions=["clipboard-read", "clipboard-write"])
    shell = await Shell(page).open()
    await page.raw.evaluate("navigator.clipboard.writeText('echo a\\x1b[201~\\nid > pwned\\n')")
    await page.get("button", "Paste").click()
    await shell.says("echo a")
    await page.raw.wait_for_timeout(300)
    assert await session.output("ls") == ""


@pytest.mark.extended
async def test_selected_text_is_copied(visit: Visit, admin_key: str, session: SessionApi) -> None:
    page = await visit(admin_key, place(session), permissions=["clipboard-read", "clipboard-write"])
    shell = await Shell(page).open()
    await shell.type("clear; echo cop''ied")
    await shell.says("copied")
    await page.raw.locator(".xterm-screen").dblclick(position={"x": 20, "y": 8})
    await page.get("button", "Copy").click()
    await expect(page.text("Copied.")).to_be_visible()
    assert await page.raw.evaluate("navigator.clipboard.readText()") == "copied"


@pytest.mark.extended
async def test_the_terminal_is_left_by_keyboard_and_read_aloud(shell: Shell) -> None:
    page = shell.page
    await shell.press("Tab")
    await expect(page.field("Shell 1, input")).to_be_focused()  # the program in the terminal has the key
    await shell.press("Control+Shift+ArrowUp")
    await expect(page.get("tab", "Shell 1")).to_be_focused()
    await page.field("Screen reader").check()
    await shell.focus()
    await shell.type("echo al''oud")
    await expect(page.raw.locator(".xterm-accessibility")).to_contain_text("aloud")


@pytest.mark.extended
async def test_a_page_that_keeps_its_key_in_memory_has_terminals_and_files_too(
    visit: Visit, admin_key: str, session: SessionApi, server: ServerProcess
) -> None:
    page = await visit(place=f"http://{FAR_NAME}:{server.port}{place(session)}")
    page.expected.append("Cross-Origin-Opener-Policy header has been ignored")
    await page.field("API key").fill(admin_key)
    await page.get("button", "Sign in").click()
    shell = await Shell(page).open()
    await shell.type("echo key > not''e; echo wri''tten")
    await shell.says("written")
    assert await page.raw.context.cookies() == []
    await page.get("tab", "Files").click()
    await page.get("button", "note", exact=True).click()
    await expect(page.field("Text", exact=True)).to_have_value("key\n")
    async with page.raw.expect_download() as started:
        await page.get("button", "Download", exact=True).click()
    assert (await started.value).suggested_filename == "note"


@pytest.mark.extended
async def test_colours_and_themes(visit: Visit, admin_key: str, session: SessionApi) -> None:
    for scheme in ("light", "dark"):
        page = await visit(admin_key, place(session), color_scheme=scheme, viewport={"width": 360, "height": 740})
        shell = await Shell(page).open()
        colours = r"\033[31mred \033[1;32mgreen \033[38;2;255;128;0mtrue\033[0m \033[48;5;27m256\033[0m"
        await session.write("colours", f"ls --color -la /usr; printf '{colours}\\n'".encode())
        await shell.type("bash colours")
        await shell.says("true")
        colour = await page.raw.locator(".xterm-rows span", has_text="true").first.evaluate("e => e.style.color")
        assert colour.startswith("rgb")
        wider = await page.raw.evaluate("document.documentElement.scrollWidth > innerWidth")
        assert not wider
        await page.picture(f"terminal-{scheme}-360")


@pytest.mark.extended
async def test_a_key_without_the_scope_sees_no_terminal(visit: Visit, new_key: NewKey, api: Api) -> None:
    key = await new_key("readers", "read", "sessions")
    async with Api(api.url, {"X-API-Key": key}) as theirs, theirs.session() as session:
        page = await visit(key, place(session))
        page.expected.append("status of 4(04|10)")  # it ends before the page is closed
        await expect(page.get("tab", "Processes")).to_be_visible()
        await expect(page.get("tab", "Terminal")).to_have_count(0)
        await expect(page.get("tab", "Files")).to_have_count(0)


@pytest.mark.extended
async def test_the_page_of_a_session_that_has_ended_says_why(page: WatchedPage, session: SessionApi) -> None:
    await page.goto(place(session))
    await page.get("button", "End", exact=True).click()
    await page.get("button", "End the session").click()
    await expect(page.text("Somebody has ended it.")).to_be_visible()
    await expect(page.get("tab", "Terminal")).to_have_count(0)
    await expect(page.get("tab", "Details")).to_be_visible()
