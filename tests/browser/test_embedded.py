"""The terminal that other products embed: it needs a ticket, which works once and can do nothing else."""

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
from browser.conftest import Visit
from browser.shell import PROMPT, Shell
from e2e.api_client import Api, SessionApi
from playwright.async_api import expect
from server_process import ServerProcess

pytestmark = [pytest.mark.anyio, pytest.mark.extended]


@pytest.fixture(autouse=True)  # before the pages, which are closed before it ends
async def session(api: Api) -> AsyncIterator[SessionApi]:
    async with api.session() as session:
        yield session


async def ticket(session: SessionApi, **wanted: Any) -> str:
    made = await session.call("POST", "/tickets", {"kind": "terminal", **wanted}, status=201)
    return str(made["url"])


async def test_a_ticket_opens_a_terminal_once(visit: Visit, session: SessionApi) -> None:
    url = await ticket(session)
    page = await visit(place=url)
    shell = Shell(page)
    await shell.says(PROMPT)
    await shell.focus()
    await shell.type("echo em''bedded")
    await shell.says("embedded")
    assert "ticket" not in page.raw.url
    assert await page.raw.context.cookies() == []
    await page.picture("embedded")
    again = await visit(place=url)
    again.expected.append("status of 401")
    await expect(again.get("alert", "")).to_contain_text("ticket")


async def test_the_embedded_terminal_comes_back_after_the_server_was_away(
    visit: Visit, session: SessionApi, server: ServerProcess
) -> None:
    page = await visit(place=await ticket(session))
    page.expected.append(r"ERR_|WebSocket|Failed to load")
    shell = Shell(page)
    await shell.says(PROMPT)
    await shell.focus()
    await shell.type("echo be''fore")
    await shell.says("before")
    await asyncio.to_thread(server.kill)
    await expect(page.text("comes back by itself")).to_be_visible()
    await asyncio.to_thread(server.start)
    await expect(page.text("Connected", exact=True)).to_be_visible()
    await shell.type("echo af''ter")
    await shell.says("after")


async def test_a_ticket_to_watch_shows_the_terminal_and_takes_no_input(
    visit: Visit, admin_key: str, session: SessionApi
) -> None:
    typed = await Shell(await visit(admin_key, f"/ui/sessions/{session.id}")).open()
    (process,) = (await session.get("/processes"))["processes"]
    page = await visit(place=await ticket(session, process_id=process["process_id"], read_only=True))
    watched = Shell(page)
    await typed.type("echo sh''own")
    await watched.says("shown")
    await expect(page.text("Connected, read only")).to_be_visible()
    await watched.focus()
    await watched.type("touch typed-by-the-watcher")
    rows, columns = await typed.size()
    await watched.says(rf"size\d+={rows}x{columns}")
    assert len(await watched.lines()) == rows
    assert await session.output("ls") == ""
    await typed.type("seq 200000; echo fin''ished")
    await watched.says("finished")


async def test_other_sites_may_show_it_in_a_frame_only_if_the_ticket_says_so(
    visit: Visit, session: SessionApi, server: ServerProcess
) -> None:
    for origins, is_shown in (([server.url], True), ([], False)):
        page = await visit(place="/version")
        page.expected.append("frame-ancestors|Refused to frame|Framing|ERR_BLOCKED|frame")
        url = await ticket(session, origins=origins)
        response = await page.raw.request.get(url)
        policy = response.headers["content-security-policy"]
        ancestors = re.search("frame-ancestors ([^;]*)", policy)
        assert ancestors is not None
        assert (server.url in ancestors[1]) is is_shown
