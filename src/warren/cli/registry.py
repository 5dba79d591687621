"""`warren registry`: agents, tools, prompts and environments of a server, and checks of the files on this machine."""

from pathlib import Path
from typing import Any, Final

import click

from warren.cli.main import CommandGroup
from warren.cli.options import json_option, parse_pairs
from warren.cli.output import print_json
from warren.cli.remote import Answer, RemoteServer, line, server_command, table
from warren.config.settings import read_settings
from warren.model.agent import Agent
from warren.model.errors import EntryNotFound, InvalidRequest
from warren.model.prompt import Prompt

_KINDS: Final = ("environments", "agents", "tools", "prompts")
_kind = click.Choice(_KINDS)


@click.group(cls=CommandGroup)
def registry() -> None:
    """List, show and check agents, tools, prompts and environments.

    They are YAML files; a server reads a changed file within seconds.

    Example: warren registry list agents
    """


@registry.command("list")
@click.argument("kind", type=_kind, required=False)
@server_command
def list_entries(server: RemoteServer, kind: str | None) -> Answer:
    """List the entries of a server that you may use.

    Of one KIND, or of all.

    Example: warren registry list tools
    """
    found = [server.backend.call("list_registry", kind=each) for each in ([kind] if kind else _KINDS)]
    rows = [(each["kind"][:-1], one["name"], one["description"]) for each in found for one in each["entries"]]
    return table({each["kind"]: each["entries"] for each in found}, ("KIND", "NAME", "DESCRIPTION"), rows)


@registry.command()
@click.argument("kind", type=_kind)
@click.argument("name")
@server_command
def show(server: RemoteServer, kind: str, name: str) -> Answer:
    """Show an entry of a server.

    Example: warren registry show agents coder
    """
    import yaml

    entry = _get(server, kind, name)
    text = yaml.safe_dump(entry, sort_keys=False, allow_unicode=True, width=100)
    return line(entry, text.removesuffix("\n"))


@registry.command()
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False, exists=True), required=False)
@json_option
def validate(directory: Path | None, as_json: bool) -> int:
    """Check a registry as a server would.

    The one in DIRECTORY, or that of this machine's settings: files, and what agents name. The exit code is 1 if
    there is a mistake.

    Example: warren registry validate ./registry
    """
    from warren.app.wiring import build_registry
    from warren.config.registry import Registry, packaged_registry

    found = Registry(packaged_registry(), directory) if directory else build_registry(read_settings())
    problems = found.all_problems()
    if as_json:
        rows = [{"kind": kind, "name": name, "problem": said or None} for (kind, name), said in problems.items()]
        print_json({"entries": rows})
    else:
        for (kind, name), problem in problems.items():
            click.echo(f"{'FAIL' if problem else 'ok':<5} {f'{kind}/{name}':<32} {problem}".rstrip())
    return 1 if any(problems.values()) else 0


@registry.command()
@click.argument("name")
@click.option("--var", "variables", multiple=True, metavar="K=V", help="A value for a variable. Repeatable.")
@server_command
def render(server: RemoteServer, name: str, variables: tuple[str, ...]) -> Answer:
    """Print a prompt with its variables filled in.

    NAME is a prompt, or an agent that has one.

    Example: warren registry render coding --var language=Go
    """
    text = _render(server, name, parse_pairs("--var", variables))
    return line({"name": name, "text": text}, text.removesuffix("\n"))


def _render(server: RemoteServer, name: str, given: dict[str, str]) -> str:
    try:
        text: str = server.backend.call("render_prompt", entry=name, variables=given)["text"]
        return text
    except EntryNotFound as not_a_prompt:
        try:
            agent = Agent.of_shown(_get(server, "agents", name))
        except EntryNotFound:
            raise EntryNotFound(
                f"there is neither a prompt nor an agent {name!r}", remedy=not_a_prompt.remedy
            ) from None
    if agent.prompt is None:
        raise InvalidRequest(f"the agent {name!r} has no prompt")
    return agent.prompt.render(lambda prompt: Prompt.from_mapping(_get(server, "prompts", prompt)), given)


def _get(server: RemoteServer, kind: str, name: str) -> dict[str, Any]:
    found: dict[str, Any] = server.backend.call("get_registry_entry", kind=kind, entry=name)
    return found
