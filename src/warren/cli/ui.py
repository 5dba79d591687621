"""`warren ui`: opens the dashboard of a server in a browser, signed in with the key that this user has for it."""

import html
import os
import sys
import webbrowser
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import click

from warren.cli.main import report
from warren.cli.options import server_options
from warren.cli.output import print_json
from warren.cli.remote import RemoteServer
from warren.config.settings import environment_with
from warren.model.addresses import is_loopback

_FILE: Final = "warren-ui.html"


@click.command()
@click.option("--no-browser", "--print", "only_print", is_flag=True, help="Only print the link.")
@server_options
def ui(only_print: bool, url: str, as_json: bool) -> None:
    """Open the dashboard in a browser: print a link that signs in, once, within five minutes.

    Whoever opens the link has the rights of your key. Without a browser at hand, open it on another machine that
    reaches the server.

    Example: warren ui --no-browser
    """
    with RemoteServer(url) as server:
        made: dict[str, Any] = server.call("POST", "/api/ui/links")
        address = server.transport.address.url
    # The server may not know by which address it is reached; this program has just reached it.
    parts = urlsplit(made["url"])
    link = f"{address.rstrip('/')}{parts.path}" + (f"#{parts.fragment}" if parts.fragment else "")
    if as_json:
        print_json({**made, "url": link})
        return
    click.echo(link)
    base = urlsplit(address)
    if made["expires_at"] and base.scheme != "https" and not is_loopback(base.hostname or ""):
        report("browsers keep a sign-in only over HTTPS or on localhost: there, paste a key into the page instead")
    if not only_print and _has_browser() and not _open(link):
        report("no browser could be opened: open the link yourself")


def _has_browser() -> bool:
    """Whether a browser can be opened. For root none can, unless BROWSER names it: it would run as root."""
    environ = environment_with({})
    if os.geteuid() == 0 and "BROWSER" not in environ:
        return False
    return sys.platform == "darwin" or any(name in environ for name in ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY"))


def _open(link: str) -> bool:
    """Opens the link in a browser, by a file that only this user can read: every user of the machine can read the
    arguments of a browser. Returns whether that worked."""
    folder = Path(environment_with({}).get("XDG_RUNTIME_DIR") or Path.home() / ".cache")
    page = f'<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0; url={html.escape(link)}">\n'
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = folder / _FILE
        path.unlink(missing_ok=True)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(fd, "w") as file:
            file.write(page)
        return webbrowser.open(path.as_uri())
    except (OSError, webbrowser.Error):
        return False
