"""Processes of a session's page: started, watched while they write, signalled, killed and forgotten."""

import re
from collections.abc import AsyncIterator

import pytest
from browser.conftest import Visit
from browser.watched_page import WatchedPage
from e2e.api_client import Api, SessionApi
from playwright.async_api import expect

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)  # before the pages, which are closed before it ends
async def session(api: Api) -> AsyncIterator[SessionApi]:
    async with api.session() as session:
        yield session


@pytest.fixture
async def processes(visit: Visit, admin_key: str, session: SessionApi) -> WatchedPage:
    return await visit(admin_key, f"/ui/sessions/{session.id}?tab=processes")


async def start(page: WatchedPage, command: str, name: str) -> None:
    await page.get("button", "Start a command").click()
    await page.raw.get_by_role("textbox", name=re.compile("^Command")).fill(command)
    await page.raw.get_by_role("textbox", name=re.compile("^Name")).fill(name)
    await page.get("button", "Start", exact=True).click()


async def test_a_command_is_started_watched_signalled_and_forgotten(
    processes: WatchedPage, session: SessionApi
) -> None:
    command = "trap 'echo got it; exit 5' USR1; echo -e '\\e[31mbegun\\e]0;title\\a\\e[0m'; while :; do sleep 0.1; done"
    await start(processes, command, "worker")
    output = processes.get("region", "Output of worker").locator(".xterm-rows")
    await expect(output).to_contain_text("begun")
    assert "title" not in await processes.raw.title()
    await processes.get("button", "Signal worker").click()
    await processes.get("combobox", "Signal").select_option("USR1")
    await processes.get("button", "Send").click()
    await expect(output).to_contain_text("got it")
    await expect(processes.text("It ended with 5.")).to_be_visible()
    await expect(processes.text("exit 5", exact=True)).to_be_visible()
    await processes.get("button", "Forget worker").click()
    await expect(processes.text("Nothing runs in the background.")).to_be_visible()
    assert (await session.get("/processes"))["processes"] == []


async def test_commands_are_killed_one_by_one_and_all_at_once(processes: WatchedPage, session: SessionApi) -> None:
    for name in ("one", "two", "three"):
        await start(processes, "sleep 1000 & sleep 1000", name)
    await processes.get("button", "Kill one").click()
    await processes.get("button", "Kill it").click()
    await expect(processes.text("It has ended, with")).to_be_visible()
    await processes.get("button", "End everything that runs").click()
    await processes.get("button", "End everything", exact=True).click()
    await expect(processes.text("processes were ended.")).to_be_visible()
    await expect(processes.get("button", "Kill two")).to_have_count(0)
    assert not any(one["running"] for one in (await session.get("/processes"))["processes"])


async def test_a_command_that_somebody_else_starts_appears_with_its_name_as_text(
    processes: WatchedPage, session: SessionApi
) -> None:
    await session.start("echo '<img src=x onerror=alert(1)>'; printf 'a\\u202eb'; sleep 1000")
    await expect(processes.text("<img src=x onerror=alert(1)>")).to_be_visible()
    await processes.picture("processes")


async def test_much_output_is_shown_to_its_end(processes: WatchedPage) -> None:
    await start(processes, "seq 300000; echo fin''ished", "counter")
    output = processes.get("region", "Output of counter").locator(".xterm-rows")
    await expect(output).to_contain_text("finished", timeout=60_000)
