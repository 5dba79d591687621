"""`warren logs`: what a background command has said, byte by byte as it was."""

import base64
import os
from collections.abc import Iterator
from typing import Any, Final

import click

from warren.cli.main import report
from warren.cli.remote import Server, complete_session, server_options, take_session, thread_option
from warren.cli.tables import print_json

_PIECE: Final = 1024 * 1024
_WAIT_S: Final = 30.0
_FDS: Final = {"stdout": 1, "stderr": 2, "terminal": 1}


@click.command()
@click.argument("words", nargs=-1, metavar="SESSION PROCESS", shell_complete=complete_session)
@thread_option
@click.option("-f", "--follow", is_flag=True, help="Go on until the command ends.")
@click.option("--offset", type=click.IntRange(min=0), default=0, metavar="N", help="Begin at this byte of the output.")
@server_options
def logs(words: tuple[str, ...], thread: str, follow: bool, offset: int, url: str, as_json: bool) -> None:
    """Print the output of a background command.

    PROCESS is what `warren exec -d` has printed; without it the commands and terminals of SESSION are listed.

    Example: warren logs -f ses_0123 web
    """
    name, rest = take_session(words, thread)
    if len(rest) > 1:
        raise click.UsageError(f"one process at a time, not {len(rest)}")
    with Server(url) as server:
        session_id = server.find(name, thread)
        if not rest:
            _list(server.backend.call("list_processes", session_id)["processes"], as_json)
            return
        answers = _answers(server, session_id, rest[0], offset, follow)
        if as_json:
            print_json(_document(answers, offset))
            return
        for answer in answers:
            for chunk in answer["chunks"]:
                offset = _print(chunk, offset)


def _list(processes: list[dict[str, Any]], as_json: bool) -> None:
    from warren.cli.tables import print_table, show_seconds

    if as_json:
        print_json({"processes": processes})
        return
    rows = [
        (
            each["process_id"],
            "running" if each["running"] else f"{each['reason']} ({each['exit_code']})",
            show_seconds(each["started_s_ago"]),
            each["bytes_total"],
            each["command"][:60],
        )
        for each in processes
    ]
    print_table(("PROCESS", "STATE", "AGE", "BYTES", "COMMAND"), rows)


def _answers(server: Server, session_id: str, process_id: str, offset: int, follow: bool) -> Iterator[dict[str, Any]]:
    wait_s = _WAIT_S if follow else 0
    while True:
        answer = server.backend.call(
            "read_output",
            session_id,
            process_id=process_id,
            work_s=wait_s,
            offset=offset,
            limit=_PIECE,
            wait_s=wait_s,
            encoding="base64",
        )
        yield answer
        if not answer["chunks"] and not (follow and answer["running"]):
            return
        offset = answer["next_offset"]


def _print(chunk: dict[str, Any], offset: int) -> int:
    """Gives the offset after it. What the sandbox did not keep is said, not hidden."""
    if chunk["offset"] > offset:
        report(f"{chunk['offset'] - offset} bytes were not kept")
    view = memoryview(base64.b64decode(chunk["data"]))
    while view:
        view = view[os.write(_FDS[chunk["stream"]], view) :]
    return int(chunk["next_offset"])


def _document(answers: Iterator[dict[str, Any]], offset: int) -> dict[str, Any]:
    chunks, running = [], True
    for answer in answers:
        running = answer["running"]
        for chunk in answer["chunks"]:
            data = base64.b64decode(chunk.pop("data")).decode(errors="replace")
            chunks.append({**chunk, "encoding": "text", "data": data})
    end = chunks[-1]["next_offset"] if chunks else offset
    return {"chunks": chunks, "next_offset": end, "running": running}
