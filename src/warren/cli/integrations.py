"""`warren integrations`: the frameworks that Warren has adapters for, and which of them are installed."""

from dataclasses import asdict

import click

from warren.cli.options import json_option
from warren.cli.output import print_json, print_table
from warren.integrations.catalogue import INTEGRATIONS

_TITLES = ("FRAMEWORK", "INSTALLED", "TESTED", "EXTRA", "MODULE", "PAGE")


@click.command()
@json_option
def integrations(as_json: bool) -> None:
    """List the frameworks that Warren has adapters for.

    It shows which are installed here, and the oldest and newest release of each that Warren is tested with.

    Example: pip install "warren-sandbox[inspect]" && warren integrations
    """
    if as_json:
        print_json([{**asdict(each), "page": each.page, "installed": each.installed} for each in INTEGRATIONS])
        return
    rows = [
        (each.name, each.installed or "-", f"{each.oldest} to {each.newest}", each.extra, each.module, each.page)
        for each in INTEGRATIONS
    ]
    print_table(_TITLES, rows, spare=("PAGE", "MODULE"))
