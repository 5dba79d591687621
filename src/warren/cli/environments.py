"""`warren environments`: what the sessions of a server can be made of, and checks of the files on this machine."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from warren.cli.main import CommandGroup
from warren.cli.options import complete_environment, complete_own_environment, json_option
from warren.cli.output import print_json
from warren.cli.remote import Answer, RemoteServer, line, server_command, table
from warren.config.settings import read_settings
from warren.model.errors import InvalidRequest, UnknownEnvironment

if TYPE_CHECKING:
    from warren.config.registry import Registry

_TITLES = ("NAME", "IMAGE", "STATE", "MEMORY", "CPUS", "DISK", "DESCRIPTION")
_NO_RECIPE = (
    "an environment's file may say how its image is made (docs/build.md), "
    "`warren image build IMAGE DIRECTORY` and `warren image pull SOURCE --name IMAGE` make one under its name"
)


@click.group(cls=CommandGroup)
def environments() -> None:
    """List, show, check and build environments.

    An environment is a YAML file with an image, limits and variables; a server reads a changed file within seconds.

    Example: warren environments list
    """


@environments.command("list")
@server_command
def list_environments(server: RemoteServer) -> Answer:
    """List the environments of a server that you may use.

    A star marks the one that sessions get by default.

    Example: warren environments list
    """
    found = server.backend.call("list_environments")["environments"]
    return table({"environments": found}, _TITLES, map(_row, found))


@environments.command()
@click.argument("name", shell_complete=complete_environment)
@server_command
def show(server: RemoteServer, name: str) -> Answer:
    """Show the environment NAME of a server.

    Example: warren environments show base
    """
    found = server.backend.call("list_environments")["environments"]
    one = next((one for one in found if one["name"] == name), None)
    if one is None:
        known = ", ".join(each["name"] for each in found) or "none"
        raise UnknownEnvironment(f"there is no environment {name!r}", remedy=f"there are: {known}")
    return line(one, "\n".join(f"{key + ':':<16} {_text(value)}" for key, value in one.items()))


@environments.command()
@click.argument("files", nargs=-1, type=click.Path(path_type=Path))
@json_option
def validate(files: tuple[Path, ...], as_json: bool) -> int:
    """Check FILES, or all environments of this machine.

    As a server would; the exit code is 1 if one has a mistake. Their images need not be there: `warren environments
    list` shows which of a server's are missing.

    Example: warren environments validate my.yaml
    """
    from warren.app.wiring import build_registry

    problems = {str(file): _problem_of(file) for file in files} if files else build_registry(read_settings()).problems()
    if as_json:
        print_json({"environments": [{"name": name, "problem": problem or None} for name, problem in problems.items()]})
    else:
        for name, problem in problems.items():
            click.echo(f"{'FAIL' if problem else 'ok':<5} {name:<24} {problem}".rstrip())
    return 1 if any(problems.values()) else 0


@environments.command()
@click.argument("names", nargs=-1, shell_complete=complete_own_environment)
@click.option("--no-cache", is_flag=True, help="Run all steps, also those whose layers are there.")
@json_option
def build(names: tuple[str, ...], no_cache: bool, as_json: bool) -> None:
    """Build the images of the environments NAMES on this machine.

    By default of all whose files say how their images are made. A server builds one that is missing when it is first
    needed; this does it ahead.

    Example: sudo warren environments build Python3
    """
    from warren.app.wiring import build_recipes, build_registry, read_environment
    from warren.cli.build_lines import shown_steps
    from warren.cli.image_build import build_named, find_recipe, print_made

    settings = read_settings()
    wanted = names or _with_recipes(build_registry(settings))
    found = {name: read_environment(settings, name) for name in wanted}
    made = []
    for image in dict.fromkeys(one.image for one in found.values()):
        if build_recipes(settings)(image) is None and image in ("base", "host"):
            click.echo(f"image {image}: `warren image build {image}` builds it", err=True)
            continue
        with shown_steps(f"image {image}") as lines:
            made.append(build_named(settings, find_recipe(settings, image, _NO_RECIPE), lines, no_cache=no_cache))
        if not as_json:
            print_made(made[-1], as_json=False)
    if as_json:
        print_json({"images": [asdict(one) for one in made]})


def _with_recipes(registry: "Registry") -> list[str]:
    problems = registry.problems()
    return [name for name in registry.names if not problems[name] and registry.environment(name).recipe is not None]


def _problem_of(file: Path) -> str:
    from warren.config.registry import read_environment

    try:
        read_environment(file)
    except InvalidRequest as exc:
        return str(exc)
    return ""


def _row(one: dict[str, Any]) -> tuple[object, ...]:
    limits = one["limits"]
    name = f"{one['name']} *" if one["default"] else one["name"]
    return (
        name,
        one["image"],
        one.get("image_state"),
        f"{limits['memory_mb']} MiB",
        limits["cpus"],
        f"{limits['disk_mb']} MiB",
        one["description"],
    )


def _text(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {each}" for name, each in value.items())
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "-"
    return "-" if value is None else str(value)
