"""`warren logs`: the log of a session, and the output of its background commands."""

import base64
import json
import re
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, Final

import click

from warren.cli.main import report
from warren.cli.options import server_options, thread_option
from warren.cli.output import (
    STREAM_FDS,
    format_seconds,
    print_json,
    print_table,
    printable,
    write_bytes,
)
from warren.cli.remote import RemoteServer, complete_session, split_session

_PROCESS_TITLES: Final = ("PROCESS", "STATE", "AGE", "BYTES", "COMMAND")
_OUTPUT_BYTES: Final = 1024 * 1024
_FOLLOW_S: Final = 30.0
_EVENTS: Final = "command,cell,terminal,note"
_MARKS: Final = {"stderr": "!", "result": "="}
_MOST: Final = 1000

Values = dict[str, Any]


@click.command()
@click.argument("words", nargs=-1, metavar="[rm] SESSION [PROCESS]", shell_complete=complete_session)
@thread_option
@click.option("-f", "--follow", is_flag=True, help="Go on until the session, or the command, ends.")
@click.option("--offset", type=click.IntRange(min=0), default=0, metavar="N", help="Begin at this byte of the output.")
@click.option("-n", "--tail", type=click.IntRange(min=0), metavar="N", help="Begin with the last N lines or entries.")
@click.option("--no-output", is_flag=True, help="Of the log, only what ran and how it ended.")
@server_options
def logs(
    words: tuple[str, ...],
    thread: str,
    follow: bool,
    offset: int,
    tail: int | None,
    no_output: bool,
    url: str,
    as_json: bool,
) -> None:
    """Print the log of a session, or the output of a background command.

    The log of SESSION has its commands, cells and terminals, and what these wrote, also after its end, as far as it
    keeps that: it was created with --logs, or the operator wants it. Of a session without a log its commands
    are listed. After the end of a session its id is needed in full. With PROCESS, which is what
    `warren exec -d` has printed, the output of that command is printed, byte by byte as it was.
    `warren logs rm SESSION` deletes a log.

    Example: warren logs -f ses_0123 web
    """
    removes = words[:1] == ("rm",)
    name, process_id = _split_process(words[removes:], thread)
    with RemoteServer(url) as server:
        session_id = server.find(name, thread)
        if removes:
            server.backend.call("delete_logs", session_id)
            print_json({"removed": session_id}) if as_json else click.echo(f"removed the log of {session_id}")
        elif process_id:
            _print_output(server, session_id, process_id, offset, tail, follow=follow, as_json=as_json)
        else:
            _print_log(server, session_id, tail, "" if not no_output else _EVENTS, follow=follow, as_json=as_json)


# -- the log of a session


def _print_log(
    server: RemoteServer, session_id: str, tail: int | None, kinds: str, *, follow: bool, as_json: bool
) -> None:
    first = server.backend.call("read_logs", session_id, kinds=kinds, last=min(tail, _MOST) if tail else None)
    if first["level"] == "off" and not first["entries"]:
        report(first["hint"]) if follow else None
        _print_processes(server.backend.call("list_processes", session_id)["processes"], as_json)
        return
    entries = _all_entries(server, session_id, first, kinds, follow=follow)
    if as_json and not follow:
        print_json({**{name: first[name] for name in ("session_id", "level", "ended")}, "entries": list(entries)})
        return
    for entry in entries:
        click.echo(json.dumps(entry) if as_json else "\n".join(_shown(entry)))


def _all_entries(server: RemoteServer, session_id: str, page: Values, kinds: str, *, follow: bool) -> Iterator[Values]:
    yield from page["entries"]
    while page["more"]:
        page = server.backend.call("read_logs", session_id, kinds=kinds, after=page["next"])
        yield from page["entries"]
    if follow and not page["ended"]:
        for name, values in server.backend.events("read_logs", session_id, kinds=kinds, after=page["next"]):
            if name == "entry":
                yield values


def _shown(entry: Values) -> Iterable[str]:
    """The lines that a person sees: when and what, and below that what was written."""
    if entry["kind"] == "output":
        if entry.get("missing"):
            yield f"  … {entry['missing']:,} bytes were not kept"
        mark = _MARKS.get(entry["stream"], "|")
        for line in entry["text"].splitlines():
            yield f"  {mark} {printable(line)}"
        return
    moment = entry["at"][:19].replace("T", " ")
    if entry["kind"] == "note":
        yield f"{moment} -- {printable(entry['text'])}"
        return
    what = f"{moment} {entry['kind']} {printable(entry.get('command_id', ''))} {entry['event']}"
    if "exit_code" in entry or entry["event"] == "failed":
        yield f"{what}{_ending(entry)}"
        return
    first, *rest = entry.get("command", "").splitlines() or [""]
    yield f"{what}: {printable(first)}" if first else what
    for line in rest:
        yield f"  > {printable(line)}"


def _ending(entry: Values) -> str:
    code = "" if entry.get("exit_code") is None else f" with {entry['exit_code']}"
    took = f" after {entry['duration_ms'] / 1000:.1f} s" if "duration_ms" in entry else ""
    error = f", {printable(entry['error'])}" if entry.get("error") else ""
    return f"{code} ({printable(entry['reason'])}){took}{error}"


# -- the output of a background command


def _print_output(
    server: RemoteServer,
    session_id: str,
    process_id: str,
    offset: int,
    tail: int | None,
    *,
    follow: bool,
    as_json: bool,
) -> None:
    if tail is not None:
        offset = _find_tail(_read_output(server, session_id, process_id, offset, follow=False), tail)
    pages = _read_output(server, session_id, process_id, offset, follow)
    if as_json:
        print_json(_output_document(pages, offset))
        return
    for page in pages:
        for chunk in page["chunks"]:
            offset = _print_chunk(chunk, offset)


def _split_process(words: tuple[str, ...], thread: str) -> tuple[str, str]:
    name, rest = split_session(words, thread)
    if len(rest) > 1:
        raise click.UsageError(f"one process at a time, not {len(rest)}")
    return name, rest[0] if rest else ""


def _print_processes(processes: list[Values], as_json: bool) -> None:
    if as_json:
        print_json({"processes": processes})
        return
    rows = [
        (
            each["process_id"],
            "running" if each["running"] else f"{each['reason']} ({each['exit_code']})",
            format_seconds(each["started_s_ago"]),
            each["bytes_total"],
            each["command"][:60],
        )
        for each in processes
    ]
    print_table(_PROCESS_TITLES, rows)


def _read_output(server: RemoteServer, session_id: str, process_id: str, offset: int, follow: bool) -> Iterator[Values]:
    wait_s = _FOLLOW_S if follow else 0
    while True:
        page = server.backend.call(
            "read_output",
            session_id,
            process_id=process_id,
            work_s=wait_s,
            offset=offset,
            limit=_OUTPUT_BYTES,
            wait_s=wait_s,
            encoding="base64",
        )
        yield page
        if not page["chunks"] and not (follow and page["running"]):
            return
        offset = page["next_offset"]


def _find_tail(pages: Iterator[Values], lines: int) -> int:
    """Returns the offset at which the last `lines` lines of the output begin.

    Keeps only the offsets of these lines, not the output.
    """
    begins: deque[int] = deque(maxlen=lines + 1)  # the offsets at which lines begin
    end = 0
    for page in pages:
        for chunk in page["chunks"]:
            data = base64.b64decode(chunk["data"])
            if not begins:
                begins.append(chunk["offset"])
            begins.extend(chunk["offset"] + found.end() for found in re.finditer(b"\n", data))
            end = chunk["next_offset"]
    if not begins or not lines:
        return end
    if begins[-1] == end:  # the last line is complete
        return begins[0]
    return begins[max(0, len(begins) - lines)]


def _print_chunk(chunk: Values, offset: int) -> int:
    """Prints a chunk, and reports bytes before it that the sandbox did not keep. Returns the offset after the chunk."""
    if chunk["offset"] > offset:
        report(f"{chunk['offset'] - offset} bytes were not kept")
    write_bytes(STREAM_FDS[chunk["stream"]], base64.b64decode(chunk["data"]))
    return int(chunk["next_offset"])


def _output_document(pages: Iterator[Values], offset: int) -> Values:
    chunks, running = [], True
    for page in pages:
        running = page["running"]
        for chunk in page["chunks"]:
            data = base64.b64decode(chunk.pop("data")).decode(errors="replace")
            chunks.append({**chunk, "encoding": "text", "data": data})
    end = chunks[-1]["next_offset"] if chunks else offset
    return {"chunks": chunks, "next_offset": end, "running": running}
