"""`warren stats SESSION`: what a session uses, as a table for people and as lines for logs."""

import json
import sys
import time
from typing import Any, Final

import click

from warren.cli.output import CLEAR_SCREEN, format_mib, print_json, print_table
from warren.cli.remote import RemoteServer

Values = dict[str, Any]
_TITLES: Final = ("", "USED", "LIMIT", "SHARE", "BEFORE")
_BARS: Final = "▁▂▃▄▅▆▇█"
_SHOWN: Final = 30  # points of the series


def show_session(server: RemoteServer, session_id: str, *, watch_s: float | None, as_json: bool) -> None:
    """Shows what a session uses: once, or every `watch_s` until it is interrupted, in place on a terminal and otherwise
    as a line each time."""
    while True:
        found: Values = server.backend.call("get_metrics", session_id)
        if as_json and watch_s is None:
            print_json(found)
        elif as_json:
            click.echo(_json_line(found))
        elif watch_s is None or sys.stdout.isatty():
            click.echo(CLEAR_SCREEN if watch_s is not None else "", nl=False)
            _print_table(found)
        else:
            click.echo(_line(found["now"]))
        if watch_s is None:
            return
        sys.stdout.flush()
        time.sleep(watch_s)


def _print_table(found: Values) -> None:
    now, limits = found["now"], found["limits"]
    click.echo(f"session {found['session_id']} at {now['at']}")
    click.echo()
    rows = [
        ("cpu", f"{now['cpus']:.2f} cores", f"{limits['cpus']:g} cores", *_share(found, "cpus")),
        ("memory", *_bytes(now, limits, "memory_bytes"), *_share(found, "memory_bytes")),
        ("disk", *_bytes(now, limits, "disk_bytes"), *_share(found, "disk_bytes")),
        ("processes", now["processes"], limits["processes"], *_share(found, "processes")),
    ]
    print_table(_TITLES, rows)
    click.echo()
    click.echo(
        f"file cache {format_mib(now['cache_bytes'])}; network {format_mib(now['sent_bytes'])} sent, "
        f"{format_mib(now['received_bytes'])} received; {now['cpu_s']:.1f} s of processor time in all"
    )


def _bytes(now: Values, limits: Values, name: str) -> tuple[str, str]:
    return format_mib(now[name]), format_mib(limits[name])


def _share(found: Values, name: str) -> tuple[str, str]:
    """Returns how much of the limit is used, and a bar for each of the last points."""
    limit = found["limits"][name] or 1
    bars = (_bar(point[name] / limit) for point in found["series"][-_SHOWN:])
    return f"{found['now'][name] / limit:.0%}", "".join(bars)


def _bar(share: float) -> str:
    return _BARS[min(len(_BARS) - 1, max(0, round(share * (len(_BARS) - 1))))]


def _line(now: Values) -> str:
    return " ".join(f"{name}={value}" for name, value in now.items())


def _json_line(found: Values) -> str:
    return json.dumps({name: value for name, value in found.items() if name != "series"})
