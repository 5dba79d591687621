"""The MCP server with the real client, over stdio, streamable HTTP and SSE, against a real server with sandboxes."""

import asyncio
import base64
import re
import secrets
import shutil
import struct
import zlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e.hosts import Hosts
from frameworks.mcp_world import TRANSPORTS, HttpServer, Tools, connected, http_server, stdio, text_of
from marks import first_of
from mcp import Client, StdioServerParameters
from mcp.types import ImageContent
from server_process import ServerProcess, running_server
from this_run import new_state_dir

Place = StdioServerParameters | HttpServer


@pytest.fixture(scope="module")
def server(image_cache: Path) -> Iterator[ServerProcess]:
    state_dir = new_state_dir(image_cache)
    try:
        with running_server(state_dir, "--pool-size", "3") as server:
            yield server
        assert list((state_dir / "sandboxes").glob("*")) == []
    finally:
        shutil.rmtree(state_dir)


@pytest.fixture(scope="module")
def http(server: ServerProcess) -> Iterator[HttpServer]:
    with http_server(server.url) as http:
        yield http


@pytest.fixture(params=first_of(TRANSPORTS))
def transport(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def place(transport: str, server: ServerProcess, http: HttpServer) -> Place:
    return stdio(server.url) if transport in ("stdio", "handshake") else http


@pytest.fixture
async def client(transport: str, place: Place) -> AsyncIterator[Client]:
    async with connected(transport, place) as client:
        yield client


@pytest.fixture
async def tools(client: Client) -> AsyncIterator[Tools]:
    yield Tools(client, f"thread-{secrets.token_hex(4)}")


def png(width: int = 8, height: int = 8) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\0" + b"\xff\0\0" * width for _ in range(height))
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


@pytest.mark.anyio
class TestEveryTransport:
    async def test_the_tools_say_what_they_do_and_what_they_take(self, client: Client) -> None:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert set(tools) == {
            "bash", "run_code", "bash_background", "background_output", "background_stop", "stop_all", "read_file",
            "write_file", "edit_file", "list_files", "search_files", "sandbox_info", "reset_sandbox",
        }  # fmt: skip
        for tool in tools.values():
            assert tool.description
            assert not re.search(r"\n |[^\n]\n[^\n]", tool.description)
            assert tool.input_schema["additionalProperties"] is False
            assert (tool.output_schema is None) == (tool.name in ("read_file", "run_code"))
            assert tool.annotations is not None
            assert tool.annotations.read_only_hint is not None
            assert all(each.get("description") for each in tool.input_schema["properties"].values())
        assert tools["bash"].input_schema["required"] == ["command"]
        assert {name for name, tool in tools.items() if tool.annotations and tool.annotations.read_only_hint} == {
            "background_output", "read_file", "list_files", "search_files", "sandbox_info",
        }  # fmt: skip

    async def test_what_the_text_says_is_in_the_structured_content_too(self, tools: Tools) -> None:
        """The client compares each with the tool's schema."""

        async def data(tool: str, **arguments: object) -> dict[str, Any]:
            return dict((await tools.call(tool, **arguments)).structured_content or {})

        assert await data("bash", command="echo out; exit 3") == {
            "output": "out\n", "exit_code": 3, "reason": "exited", "truncated": False, "bytes": 4,
            "output_file": None, "background": 0, "note": "exit code 3",
        }  # fmt: skip
        late = await data("bash", command="echo begun; sleep 60", timeout=0.5)
        assert (late["output"], late["reason"], late["exit_code"]) == ("begun\n", "timeout", 124)
        assert "0.5 s" in late["note"]
        much = await data("bash", command="seq 100000")
        assert (much["truncated"], much["bytes"]) == (True, 588_895)
        assert await data("bash", command=f"wc -c < {much['output_file']}") == {
            **await data("bash", command="true"), "output": "588895\n", "bytes": 7,
        }  # fmt: skip
        assert await data("bash_background", command="echo hi; sleep 300", name="job") == {"process_id": "job"}
        part = await data("background_output", process_id="job", wait=10)
        assert part == {"output": "hi\n", "next_offset": 3, "bytes": 3, "running": True, "exit_code": None}
        assert (await data("sandbox_info"))["commands"][0]["process_id"] == "job"
        assert (await data("background_stop", process_id="job"))["was_running"]
        assert await data("write_file", path="a.txt", content="one\n") == {"path": "/workspace/a.txt", "bytes": 4}
        assert await data("edit_file", path="a.txt", old="one", new="two") == {"path": "a.txt", "places": 1}
        entry = {"path": "/workspace/a.txt", "kind": "file", "size": 4, "target": None}
        assert await data("list_files") == {"entries": [entry], "left_out": 0}
        match = {"path": "/workspace/a.txt", "line": 1, "text": "two"}
        assert await data("search_files", pattern="t") == {"matches": [match], "truncated_by": None}
        assert (await data("search_files", glob="*"))["matches"] == [{**match, "line": None, "text": None}]
        assert (await data("reset_sandbox"))["session_id"] == (await data("sandbox_info"))["session_id"]

    async def test_bash_keeps_the_directory_and_variables(self, tools: Tools) -> None:
        await tools.said("bash", command="mkdir -p deep/er && cd deep/er && export COLOUR=red")
        assert await tools.said("bash", command="echo $COLOUR in $PWD") == "red in /workspace/deep/er\n"

    async def test_a_failing_command_is_an_answer_with_its_exit_code(self, tools: Tools) -> None:
        said = await tools.said("bash", command="echo out; echo err >&2; exit 3")
        assert said == "out\nerr\n\n[exit code 3]"
        assert await tools.said("bash", command="true") == "(no output)"

    async def test_code_keeps_its_variables_and_an_error_of_it_is_an_answer(self, tools: Tools) -> None:
        assert await tools.said("run_code", code="x = 20") == "(no output)"
        assert await tools.said("run_code", code="print('out')\nx + 22") == "out\n42"
        assert await tools.said("run_code", code="echo $HOSTNAME; pwd", language="bash") == "sandbox\n/workspace"
        assert (await tools.said("run_code", code="1 / 0")).endswith("ZeroDivisionError: division by zero")
        late = await tools.refused("run_code", code="import time\ntime.sleep(60)", timeout=0.5)
        assert "interrupted after 0.5 seconds" in late
        assert await tools.said("run_code", code="x") == "20"
        assert "no language" in await tools.refused("run_code", code="x", language="cobol")

    async def test_pictures_that_code_shows_come_as_images(self, tools: Tools) -> None:
        code = f"class P:\n  def _repr_png_(self): return {png()!r}\nprint('a chart:')\nP()"
        result = await tools.call("run_code", code=code)
        assert text_of(result) == "a chart:\n[picture 1]"
        image = result.content[1]
        assert isinstance(image, ImageContent)
        assert (image.mime_type, base64.b64decode(image.data)) == ("image/png", png())
        assert result.structured_content is None

    async def test_a_command_that_takes_too_long_is_an_error_with_advice(self, tools: Tools) -> None:
        said = await tools.refused("bash", command="echo begun; sleep 60", timeout=0.5)
        assert said.startswith("begun\n")
        assert "0.5 s" in said
        assert "bash_background" in said

    async def test_big_output_is_short_and_all_of_it_is_in_a_file(self, tools: Tools) -> None:
        said = await tools.said("bash", command="seq 1000000")
        assert len(said) < 31_000
        assert said.startswith("1\n2\n")
        assert said.endswith("\n999999\n1000000\n")
        path = said.split("all of the output is in ")[1].split(":")[0]
        assert await tools.said("bash", command=f"md5sum < {path}") == await tools.said(
            "bash", command="seq 1000000 | md5sum"
        )

    async def test_background_commands_are_started_read_and_stopped(self, tools: Tools) -> None:
        line = "for i in 1 2 3; do echo line $i; done; sleep 300"
        assert "as job-1" in await tools.said("bash_background", command=line, name="job-1")
        said = await tools.said("background_output", process_id="job-1", wait=10)
        while "line 3" not in said:
            said = await tools.said("background_output", process_id="job-1")
        assert "still running" in said
        rest = await tools.said("background_output", process_id="job-1", offset=14)
        assert rest.startswith("line 3\n\n[")
        assert (await tools.said("background_output", process_id="job-1", offset=-7)).startswith("line 3\n")
        assert "job-1: for i in" in await tools.said("sandbox_info")
        assert "was stopped" in await tools.said("background_stop", process_id="job-1")
        assert "had ended before" in await tools.said("background_stop", process_id="job-1")
        assert "0 processes were ended" in await tools.said("stop_all")
        assert "[ended" in await tools.said("background_output", process_id="job-1")
        assert "background commands: none" in await tools.said("sandbox_info")

    async def test_much_background_output_comes_in_pieces(self, tools: Tools) -> None:
        await tools.said("bash_background", command="seq 20000; echo end", name="many")
        offset, whole = 0, ""
        while "end\n" not in whole:
            said = await tools.said("background_output", process_id="many", offset=offset, wait=5)
            assert len(said) < 31_000
            text, _, note = said.rpartition("\n[")
            whole += text
            offset = int(note.split("offset=")[1].rstrip("]"))
        assert whole == "".join(f"{n}\n" for n in range(1, 20001)) + "end\n"

    async def test_files_are_written_read_edited_and_listed(self, tools: Tools) -> None:
        content = "first\nsecond é\nthird\n"
        assert await tools.said("write_file", path="a/b.txt", content=content) == (
            "Wrote 22 bytes to /workspace/a/b.txt."
        )
        assert await tools.said("read_file", path="a/b.txt") == content
        said = await tools.said("read_file", path="/workspace/a/b.txt", start_line=2, lines=1)
        assert said == "second é\n\n[lines 2 to 2; the file goes on: read on with start_line=3]"
        await tools.said("bash", command="chmod 750 a/b.txt")
        assert "1 place in" in await tools.said("edit_file", path="a/b.txt", old="second é", new="2nd")
        assert "2 places in" in await tools.said("edit_file", path="a/b.txt", old="ir", new="IR", replace_all=True)
        assert await tools.said("read_file", path="a/b.txt") == "fIRst\n2nd\nthIRd\n"
        listed = await tools.said("list_files", depth=2)
        assert [line.split()[-1] for line in listed.splitlines()] == ["/workspace/a/", "/workspace/a/b.txt"]
        assert await tools.said("bash", command="stat -c %a a/b.txt") == "750\n"
        assert await tools.said("search_files", pattern="2n[d]") == "/workspace/a/b.txt:2: 2nd"
        assert await tools.said("search_files", glob="*.txt") == "/workspace/a/b.txt"
        assert "max_matches" in await tools.said("search_files", pattern=".", max_matches=1)
        assert await tools.said("search_files", pattern="nowhere") == "Nothing was found."

    async def test_an_image_comes_back_as_an_image(self, tools: Tools) -> None:
        encoded = base64.b64encode(png()).decode()
        await tools.said("bash", command=f"echo {encoded} | base64 -d > picture.dat")
        found = await tools.call("read_file", path="picture.dat")
        [image] = [block for block in found.content if isinstance(block, ImageContent)]
        assert image.mime_type == "image/png"
        assert base64.b64decode(image.data) == png()

    async def test_calls_at_once_all_get_their_own_answers(self, tools: Tools) -> None:
        said = await asyncio.gather(*(tools.said("bash", command=f"sleep 0.2; echo {n}") for n in range(8)))
        assert said == [f"{n}\n" for n in range(8)]

    async def test_edits_at_once_are_all_kept(self, tools: Tools) -> None:
        await tools.said("write_file", path="list.txt", content="".join(f"<{n}>" for n in range(8)))
        await asyncio.gather(*(tools.said("edit_file", path="list.txt", old=f"<{n}>", new=f"[{n}]") for n in range(8)))
        assert await tools.said("read_file", path="list.txt") == "".join(f"[{n}]" for n in range(8))

    async def test_a_caller_that_gives_up_ends_its_command(self, tools: Tools) -> None:
        await tools.said("bash", command="true")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await tools.call("bash", command="sleep 1000")
        async with asyncio.timeout(10):
            while await tools.said("bash", command="pgrep -x sleep || echo none") != "none\n":
                pass

    async def test_two_sandboxes_by_argument_share_nothing(self, client: Client) -> None:
        one, two = (Tools(client, f"thread-{secrets.token_hex(4)}") for _ in range(2))
        await one.said("write_file", path="mine.txt", content="secret")
        assert "no such file" in await two.refused("read_file", path="mine.txt")
        assert await one.said("read_file", path="mine.txt") == "secret"

    async def test_a_new_connection_finds_the_same_sandbox(self, transport: str, place: Place) -> None:
        name = f"thread-{secrets.token_hex(4)}"
        async with connected(transport, place) as client:
            await Tools(client, name).said("bash", command="echo kept > kept.txt; export KEPT=too")
        async with connected(transport, place, mode="legacy") as client:
            assert await Tools(client, name).said("bash", command="cat kept.txt; echo $KEPT") == "kept\ntoo\n"

    async def test_reset_gives_an_empty_sandbox(self, tools: Tools) -> None:
        await tools.said("write_file", path="old.txt", content="old")
        assert "fresh sandbox" in await tools.said("reset_sandbox")
        assert await tools.said("list_files") == "/workspace is empty."

    async def test_a_lost_sandbox_is_replaced_with_a_notice(self, tools: Tools, server: ServerProcess) -> None:
        await tools.said("write_file", path="old.txt", content="old")
        session_id = (await tools.said("sandbox_info")).split("session: ")[1].split("\n")[0]
        Hosts(server.state_dir).lose(await sandbox_of(server.url, session_id))
        first = await tools.call("bash", command="echo again")
        # Whether the loss is known before the command or only by it, it is told once and a fresh sandbox is there.
        assert "files, variables and background commands" in text_of(first)
        assert first.is_error == ("Nothing was run again" in text_of(first))
        assert await tools.said("bash", command="ls; echo again") == "again\n"


@pytest.mark.anyio
class TestWrongCalls:
    @pytest.mark.parametrize(
        ("tool", "arguments", "words"),
        [
            ("bash", {}, "The tool bash needs the argument command."),
            ("edit_file", {"path": "a"}, "The tool edit_file needs the arguments old and new."),
            ("bash", {"command": ["ls"]}, "The argument command must be a string, not a list."),
            ("bash", {"command": ""}, "The argument command must have at least 1 character, not ''."),
            ("bash", {"command": "ls", "timeout": -1}, "The argument timeout must be more than 0, not -1."),
            ("bash", {"command": "ls", "timeout": "soon"}, "The argument timeout must be a number, not 'soon'."),
            (
                "bash",
                {"command": "ls", "cmd": "ls", "cwd": "/"},
                "The tool bash has no argument 'cmd' or 'cwd'. Its arguments are command, timeout, sandbox.",
            ),
            ("bash", {"command": "ls", "sandbox": "line\nbreak"}, "thread"),
            ("read_file", {"path": "nope.txt"}, "Use list_files"),
            ("read_file", {"path": "/workspace"}, "Use list_files"),
            ("read_file", {"path": "/dev/zero"}, "not a file"),
            ("read_file", {"path": "x", "start_line": 0}, "must be at least 1, not 0"),
            ("write_file", {"path": "/etc/passwd", "content": "x"}, "read-only file system"),
            ("edit_file", {"path": "nope.txt", "old": "a", "new": "b"}, "no such file"),
            ("edit_file", {"path": "/etc/hostname", "old": "", "new": "b"}, "is empty"),
            ("edit_file", {"path": "/etc/passwd", "old": ":", "new": "b"}, "times"),
            ("edit_file", {"path": "/etc/passwd", "old": "not there", "new": "b"}, "does not contain"),
            ("edit_file", {"path": "/bin/ls", "old": "a", "new": "b"}, "not a UTF-8 text"),
            ("list_files", {"path": "/nope"}, "no such file"),
            ("background_output", {"process_id": "nope"}, "Use sandbox_info"),
            ("background_stop", {"process_id": "nope"}, "Use sandbox_info"),
            ("nope", {}, "There is no tool 'nope'. The tools are bash, run_code, "),
        ],
    )
    async def test_a_wrong_call_is_an_error_the_model_can_read(
        self, http: HttpServer, tool: str, arguments: dict[str, object], words: str
    ) -> None:
        async with connected("http", http) as client:
            said = await Tools(client).refused(tool, **arguments)
        assert words in said
        assert not re.search(r"pydantic|validation error|type=", said)


async def sandbox_of(url: str, session_id: str) -> str:
    from warren import AsyncSandboxClient

    client = AsyncSandboxClient.attach(session_id, url)
    try:
        return str((await client.info()).sandbox_id)
    finally:
        await client.close()


@pytest.mark.anyio
class TestFilesAsTheyAre:
    async def test_long_files_and_lines_come_in_bounded_pieces(self, http: HttpServer) -> None:
        async with connected("http", http) as client:
            tools = Tools(client, f"thread-{secrets.token_hex(4)}")
            await tools.said("bash", command="seq 100000 > long.txt; head -c 200000 /dev/zero | tr '\\0' x > line.txt")
            said = await tools.said("read_file", path="long.txt", start_line=50_001)
            assert said.startswith("50001\n")
            assert said.endswith("[lines 50001 to 52000; the file goes on: read on with start_line=52001]")
            cut = await tools.said("read_file", path="line.txt")
            assert len(cut) < 31_000
            assert "line 1 is not whole" in cut
            assert "ends before line 200000" in await tools.said("read_file", path="long.txt", start_line=200_000)

    async def test_other_binary_files_and_big_images_are_only_told(self, http: HttpServer) -> None:
        async with connected("http", http) as client:
            tools = Tools(client, f"thread-{secrets.token_hex(4)}")
            assert "is a binary file of" in await tools.said("read_file", path="/bin/ls")
            await tools.said("bash", command="(printf '\\x89PNG\\r\\n\\x1a\\n'; head -c 4000000 /dev/zero) > big.png")
            assert "too large to show" in await tools.said("read_file", path="big.png")
            await tools.said("bash", command=": > empty.txt")
            assert await tools.said("read_file", path="empty.txt") == "(the file is empty)"
