"""docs/mcp.md: its configurations are valid and start what they say; its tables name what there is."""

import json
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from frameworks.mcp_world import connected
from mcp import StdioServerParameters
from server_process import clean_environ

from warren.cli.mcp import mcp
from warren.integrations.mcp.sandboxes import Sandboxes
from warren.integrations.mcp.server import ToolServer
from warren.sdk.aio.platform import open_backend

_PAGE = (Path(__file__).parents[2] / "docs" / "mcp.md").read_text()


def entries() -> list[dict[str, Any]]:
    """The entry of each server in each configuration of the page."""
    found = [json.loads(block) for block in re.findall(r"```json\n(.*?)```", _PAGE, re.S)]
    found += [tomllib.loads(block) for block in re.findall(r"```toml\n(.*?)```", _PAGE, re.S)]
    return [entry for page in found for group in page.values() for entry in group.values()]


STDIO = [entry for entry in entries() if "command" in entry]
HTTP = [entry for entry in entries() if "command" not in entry]


def test_there_are_configurations_for_both_ways() -> None:
    assert (len(STDIO), len(HTTP)) == (3, 5)


@pytest.mark.anyio
@pytest.mark.parametrize("entry", STDIO)
async def test_a_client_that_reads_it_gets_the_tools_of_the_page(entry: dict[str, Any]) -> None:
    assert entry["command"] == "warren"
    place = StdioServerParameters(
        command=sys.executable,
        args=["-m", "warren.cli.main", *entry["args"]],
        env={**clean_environ(), **entry["env"]},
    )
    async with connected("stdio", place) as client:
        names = {tool.name for tool in (await client.list_tools()).tools}
    assert names == set(re.findall(r"^\| `(\w+)` \|", _PAGE, re.M))


def test_the_table_names_every_argument_in_its_order() -> None:
    tools = ToolServer(Sandboxes(open_backend("remote", "http://127.0.0.1:9", "")), "0").list_tools()["tools"]
    listed = dict(re.findall(r"^\| `(\w+)` \| ([^|]*)\|", _PAGE, re.M))
    for tool in tools:
        named = [name for name in tool["inputSchema"]["properties"] if name != "sandbox"]
        assert re.findall(r"`(\w+)`", listed[tool["name"]]) == named, tool["name"]


@pytest.mark.parametrize("entry", HTTP)
def test_an_address_is_the_one_that_is_served_by_default(entry: dict[str, Any]) -> None:
    assert {entry.get("url"), entry.get("httpUrl")} == {"http://127.0.0.1:8010/mcp", None}
    headers = entry.get("headers") or entry["http_headers"]
    assert headers["X-Warren-Thread"]
    assert headers.get("Authorization", "Bearer ").startswith("Bearer ")


def test_every_flag_of_the_page_exists() -> None:
    known = CliRunner().invoke(mcp, ["--help"]).output
    for flag in set(re.findall(r"--[a-z][a-z-]+", _PAGE)):
        assert flag in known
