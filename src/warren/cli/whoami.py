"""`warren whoami`: who a server takes you for."""

import click

from warren.cli.quota import show_quota
from warren.cli.remote import Server, server_options
from warren.cli.tables import print_json, print_table
from warren.sdk.protocol import Request


@click.command()
@server_options
def whoami(url: str, as_json: bool) -> None:
    """Show your tenant, your key and what it may do.

    Example: warren whoami --json
    """
    with Server(url) as server:
        found = server.transport.call(Request("GET", "/api/whoami"))
    if as_json:
        print_json(found)
        return
    rows = [
        ("tenant", found["tenant"]),
        ("key", found["key_id"]),
        ("scopes", ", ".join(found["scopes"])),
        ("quota", show_quota(found["quota"])),
        ("key's quota", show_quota(found["key_quota"])),
    ]
    print_table(("YOU", "ARE"), rows)
