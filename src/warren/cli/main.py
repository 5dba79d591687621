"""Entry point of `warren`: finds the command, and turns every error into one sentence and an exit code.

Exit codes: those of the command that ran in the sandbox; 2 for wrong usage; 124 when its time ran out;
125 when Warren itself failed; 128 + N when a signal N ended `warren`.
"""

import importlib
import importlib.util
import os
import signal
import sys
import traceback
from importlib.metadata import version
from types import FrameType
from typing import NoReturn

import click

from warren.model.errors import WarrenError

EXIT_WARREN_FAILED = 125

# Under a title of `warren --help`: name -> module and object; a module is imported when its command is used.
_GROUPS = {
    "Sessions of a server (--url or WARREN_URL says which)": {
        "create": "warren.cli.create:create",
        "ps": "warren.cli.ps:ps",
        "exec": "warren.cli.exec:execute",
        "cp": "warren.cli.cp:cp",
        "logs": "warren.cli.logs:logs",
        "kill": "warren.cli.kill:kill",
        "stats": "warren.cli.stats:stats",
        "self-test": "warren.cli.self_test:self_test",
    },
    "Who uses a server, and what for": {
        "whoami": "warren.cli.whoami:whoami",
        "keys": "warren.cli.keys:keys",
        "tenants": "warren.cli.tenants:tenants",
        "audit": "warren.cli.audit:audit",
        "usage": "warren.cli.usage:usage",
        "webhooks": "warren.cli.webhooks:webhooks",
    },
    "Sandboxes of this machine, without a server": {
        "run": "warren.cli.run:run",
        "shell": "warren.cli.shell:shell",
        "image": "warren.cli.image:image",
    },
    "Many machines": {
        "coordinator": "warren.cli.nodes:coordinator",
        "worker": "warren.cli.nodes:worker",
        "cluster": "warren.cli.cluster:cluster",
    },
    "The server and the machine": {
        "serve": "warren.cli.serve:serve",
        "mcp": "warren.cli.mcp:mcp",
        "doctor": "warren.cli.doctor:doctor",
        "config": "warren.cli.config:config",
        "completion": "warren.cli.completion:completion",
    },
}
_COMMANDS = {name: place for group in _GROUPS.values() for name, place in group.items()}


class LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for name, place in _COMMANDS.items() if importlib.util.find_spec(place.partition(":")[0])]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        module, _, attribute = _COMMANDS[cmd_name].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # click would make it exit code 1
            return 128 + signal.SIGPIPE

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, names in _GROUPS.items():
            commands = [(name, self.get_command(ctx, name)) for name in names]
            with formatter.section(title):
                formatter.write_dl([(name, each.get_short_help_str(90)) for name, each in commands if each is not None])


def _print_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        click.echo(f"warren {version('warren')}")
        ctx.exit()


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_print_version, help="Show the version."
)
def cli() -> None:
    """Isolated Linux sandboxes for AI agents."""


def main() -> NoReturn:
    _fill_standard_streams()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end_by_signal)
    code = _run(sys.argv[1:])
    _flush()
    sys.exit(code)


def _run(arguments: list[str]) -> int:
    try:
        result = cli.main(arguments, prog_name="warren", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except click.ClickException as exc:
        exc.show()
        return exc.exit_code
    except (click.Abort, KeyboardInterrupt):
        return 128 + signal.SIGINT
    except WarrenError as exc:
        report(exc.message, exc.remedy)
        return EXIT_WARREN_FAILED
    except ModuleNotFoundError as exc:
        report(f"this command needs the package {exc.name}, which is not installed", "pip install 'warren[server]'")
        return EXIT_WARREN_FAILED
    except Exception as exc:
        return _internal_error(exc)


def report(message: str, remedy: str = "") -> None:
    click.echo(f"warren: {message}", err=True)
    if remedy:
        click.echo(f"  hint: {remedy}", err=True)


def _internal_error(exc: Exception) -> int:
    report(f"internal error: {type(exc).__name__}: {exc}", "WARREN_DEBUG=1 shows where; please report it")
    if _debug():
        traceback.print_exc()
    return EXIT_WARREN_FAILED


def _debug() -> bool:
    from warren.config.settings import read_settings

    try:
        return read_settings().debug
    except WarrenError:
        return False


def _end_by_signal(number: int, _: FrameType | None) -> NoReturn:
    """Ends by an exception, so that everything half-made is unmade on the way out."""
    raise SystemExit(128 + number)


def _fill_standard_streams() -> None:
    """A stream that was closed by who started us must not become the number of another file."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def _flush() -> None:
    """A reader that went away is no error of ours, also not in the interpreter's last flush."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
