"""What the vendor's suite does not ask of a backend: state, rights, both ways of calling, long files, big outputs."""

from collections.abc import Iterator
from typing import Any

import pytest
from deepagents import create_deep_agent
from frameworks.scripted_model import scripted
from frameworks.test_threads import tool_texts

from warren import AsyncSandboxClient, SandboxClient
from warren.integrations.deepagents import WarrenSandbox


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[SandboxClient]:
    with SandboxClient(url) as client:
        yield client


@pytest.fixture
def backend(client: SandboxClient) -> WarrenSandbox:
    return WarrenSandbox(client=client)


def test_cd_and_variables_last_to_the_next_command(backend: WarrenSandbox) -> None:
    backend.execute("mkdir -p /workspace/deep && cd /workspace/deep && export COLOUR=red")
    assert backend.execute("echo $COLOUR in $PWD").output == "red in /workspace/deep\n"


def test_output_and_errors_come_in_the_order_they_were_written(backend: WarrenSandbox) -> None:
    assert backend.execute("echo 1; echo 2 >&2; echo 3; exit 4").output == "1\n2\n3\n"
    assert backend.execute("exit 4").exit_code == 4


@pytest.mark.anyio
async def test_both_ways_of_calling_work_on_one_session(url: str) -> None:
    async with AsyncSandboxClient(url) as client:
        backend = WarrenSandbox(client=client)
        await backend.awrite("/workspace/a", "one")
        read = backend.read("/workspace/a")
        assert read.file_data is not None
        assert read.file_data["content"] == "one"
        assert backend.id == client.session_id
        backend.close()


def test_a_session_that_the_second_client_made_belongs_to_the_given_one_too(url: str) -> None:
    import asyncio

    client = SandboxClient(url)
    backend = WarrenSandbox(client=client)
    assert asyncio.run(backend.aexecute("echo hi")).output == "hi\n"
    assert client.session_id == backend.id
    client.cleanup()
    client.close()


def test_a_file_one_may_not_read_is_permission_denied(backend: WarrenSandbox) -> None:
    backend.execute("echo secret > /tmp/closed && chmod 000 /tmp/closed")
    assert backend.download_files(["/tmp/closed"])[0].error == "permission_denied"
    assert backend.read("/tmp/closed").error == "File '/tmp/closed': permission_denied"
    assert backend.edit("/tmp/closed", "a", "b").error == "Error: Permission denied editing file '/tmp/closed'"
    assert "permission_denied" in str(backend.write("/etc/passwd", "x").error)


def test_a_script_stays_executable_when_it_is_edited(backend: WarrenSandbox) -> None:
    backend.execute("printf '#!/bin/sh\\necho old\\n' > /tmp/script && chmod 755 /tmp/script")
    assert backend.edit("/tmp/script", "old", "new").occurrences == 1
    assert backend.execute("/tmp/script").output == "new\n"


def test_an_edit_keeps_the_line_ends_of_windows(backend: WarrenSandbox) -> None:
    backend.upload_files([("/tmp/crlf", b"one\r\ntwo\r\nthree\r\n")])
    shown = backend.read("/tmp/crlf").file_data
    assert shown is not None
    assert shown["content"] == "one\ntwo\nthree"
    assert backend.edit("/tmp/crlf", "one\ntwo", "1\n2").occurrences == 1
    assert backend.download_files(["/tmp/crlf"])[0].content == b"1\r\n2\r\nthree\r\n"


def test_a_page_says_where_the_next_one_begins(backend: WarrenSandbox) -> None:
    backend.execute("seq 1 100 > /tmp/lines")
    page = backend.read("/tmp/lines", offset=10, limit=5)
    assert (page.start_line, page.end_line, page.total_lines, page.next_offset) == (11, 15, 100, 15)
    assert backend.read("/tmp/lines", offset=95, limit=50).next_offset is None
    assert backend.read("/tmp/lines", offset=100).error == (
        "File '/tmp/lines': Line offset 100 exceeds file length (100 lines)"
    )


def test_a_file_too_long_to_fetch_is_read_in_pages(backend: WarrenSandbox) -> None:
    backend.execute("seq 1 3000000 > /tmp/long")
    page = backend.read("/tmp/long", offset=2_000_000, limit=3)
    assert page.file_data is not None
    assert page.file_data["content"] == "2000001\n2000002\n2000003"
    assert page.next_offset == 2_000_003


def test_a_link_to_a_file_is_found_and_a_link_out_of_the_tree_is_not(backend: WarrenSandbox) -> None:
    backend.execute("mkdir -p /tmp/t/sub && touch /tmp/t/sub/real.py && cd /tmp/t && ln -s sub/real.py in.py")
    backend.execute("ln -s /etc/passwd /tmp/t/out.py")
    found = backend.glob("*.py", "/tmp/t").matches
    assert found is not None
    assert [each["path"] for each in found] == ["/tmp/t/in.py", "/tmp/t/sub/real.py"]


def test_glob_from_the_root_finds_files_deep_down(backend: WarrenSandbox) -> None:
    backend.execute("mkdir -p /workspace/a/b/c/d/e/f && touch /workspace/a/b/c/d/e/f/needle.xyz")
    found = backend.glob("/workspace/**/needle.xyz").matches
    assert found is not None
    assert [each["path"] for each in found] == ["/workspace/a/b/c/d/e/f/needle.xyz"]


def test_grep_takes_paths_counts_and_leaves_git_alone(backend: WarrenSandbox) -> None:
    backend.execute("mkdir -p /tmp/g/src/x /tmp/g/.git && cd /tmp/g && echo needle | tee src/x/a.py src/b.py .git/c.py")
    found = backend.grep("needle", "/tmp/g", "src/**/*.py").matches
    assert found is not None
    assert [each["path"] for each in found] == ["/tmp/g/src/b.py", "/tmp/g/src/x/a.py"]
    every = backend.grep("needle", "/tmp/g").matches
    assert every is not None
    assert len(every) == 2
    assert backend.grep("needle", "/tmp/g", max_count=1).truncated


def test_grep_takes_the_text_as_it_is(backend: WarrenSandbox, client: SandboxClient) -> None:
    line = "a [x]{2} (n|m)+ \\ ^$*.? b"
    client.write_file("/tmp/n/deep/.a.py", f"{line}\n")
    client.write_file("/tmp/n/b.txt", "n\n")
    assert backend.grep(line[2:-2], "/tmp/n", "*.py").matches == [
        {"path": "/tmp/n/deep/.a.py", "line": 1, "text": line}
    ]
    assert len(backend.grep("(n\nx]", "/tmp/n").matches or ()) == 1
    assert len(backend.grep("n", "/tmp/n/b.txt").matches or ()) == 1
    assert backend.grep("n", "/tmp/missing").error == "Path '/tmp/missing': path_not_found"


def test_delete_removes_trees_and_says_what_was_not_there(backend: WarrenSandbox) -> None:
    backend.execute("mkdir -p /tmp/d/e && touch /tmp/d/e/f")
    assert backend.delete("/tmp/d").path == "/tmp/d"
    assert backend.delete("/tmp/d").error == "Error: '/tmp/d' not found"


def test_a_big_output_goes_to_a_file_that_the_model_can_read(client: SandboxClient) -> None:
    backend = WarrenSandbox(client=client)
    script = scripted([("execute", {"command": "seq 1 50000; exit 3"})], "done")
    state: Any = create_deep_agent(model=script, backend=backend).invoke({"messages": [("user", "go")]})
    [text] = tool_texts(state)
    assert len(text) < 10_000
    assert "/large_tool_results/" in text
    kept = backend.glob("*", "/large_tool_results").matches
    assert kept
    content = backend.download_files([kept[0]["path"]])[0].content
    assert content is not None
    assert b"\n49999\n" in content
