"""Entry point of `warren`: finds the command, and turns every error into one sentence and an exit code.

Exit codes: those of the command that ran in the sandbox; 2 for wrong usage; 124 when its time ran out, everywhere;
125 when Warren itself failed; 128 + N when a signal N ended `warren`.
"""

import difflib
import importlib
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from types import FrameType
from typing import NoReturn

import click

from warren.model.errors import WarrenError
from warren.model.version import __version__

EXIT_WARREN_FAILED = 125
_PERMISSION_HINT = (
    'run it with sudo: sudo "$(command -v warren)" …; or set WARREN_STATE_DIR to a directory of this user'
)

# The commands under each title of `warren --help`, as module:object. A module is imported when its command is used.
_GROUPS = {
    "Sessions of a server (--url or WARREN_URL says which)": {
        "create": "warren.cli.sessions:create",
        "ps": "warren.cli.sessions:ps",
        "inspect": "warren.cli.sessions:inspect",
        "pause": "warren.cli.sessions:pause",
        "resume": "warren.cli.sessions:resume",
        "exec": "warren.cli.exec:execute",
        "code": "warren.cli.code:code",
        "repl": "warren.cli.repl:repl",
        "cp": "warren.cli.cp:cp",
        "search": "warren.cli.search:search",
        "artifacts": "warren.cli.artifacts:artifacts",
        "snapshot": "warren.cli.snapshots:snapshot",
        "fork": "warren.cli.snapshots:fork",
        "volume": "warren.cli.volumes:volume",
        "network": "warren.cli.network:network",
        "ports": "warren.cli.ports:ports",
        "open": "warren.cli.ports:open_port",
        "forward": "warren.cli.ports:forward",
        "logs": "warren.cli.logs:logs",
        "kill": "warren.cli.sessions:kill",
        "kill-all": "warren.cli.sessions:kill_all",
        "stats": "warren.cli.sessions:stats",
        "ui": "warren.cli.ui:ui",
        "self-test": "warren.cli.self_test:self_test",
    },
    "Who uses a server, and what for": {
        "whoami": "warren.cli.tenants:whoami",
        "keys": "warren.cli.keys:keys",
        "tenants": "warren.cli.tenants:tenants",
        "audit": "warren.cli.records:audit",
        "usage": "warren.cli.records:usage",
        "webhooks": "warren.cli.webhooks:webhooks",
        "secrets": "warren.cli.secrets:secrets",
    },
    "Sandboxes of this machine, without a server": {
        "run": "warren.cli.run:run",
        "shell": "warren.cli.run:shell",
        "image": "warren.cli.image:image",
        "environments": "warren.cli.environments:environments",
        "registry": "warren.cli.registry:registry",
    },
    "Many machines": {
        "coordinator": "warren.cli.serve:coordinator",
        "worker": "warren.cli.serve:worker",
        "cluster": "warren.cli.cluster:cluster",
    },
    "The server and the machine": {
        "serve": "warren.cli.serve:serve",
        "mcp": "warren.cli.mcp:mcp",
        "integrations": "warren.cli.integrations:integrations",
        "doctor": "warren.cli.doctor:doctor",
        "bench": "warren.cli.bench:bench",
        "config": "warren.cli.config:config",
        "service": "warren.cli.service:service",
        "storage": "warren.cli.storage:storage",
        "support-bundle": "warren.cli.support:support_bundle",
        "uninstall": "warren.cli.uninstall:uninstall",
        "completion": "warren.cli.main:completion",
    },
}
_COMMANDS = {name: target for group in _GROUPS.values() for name, target in group.items()}
# Names that users of Docker type.
_ALIASES = {
    "ls": _COMMANDS["ps"],
    "rm": _COMMANDS["kill"],
    "images": "warren.cli.image:list_images",
}
_COMPLETION_HINTS = {
    "bash": 'eval "$(warren completion bash)"   # in ~/.bashrc',
    "zsh": 'eval "$(warren completion zsh)"    # in ~/.zshrc',
    "fish": "warren completion fish | source    # in ~/.config/fish/config.fish",
}


class CommandGroup(click.Group):
    """A group that suggests the command that was meant, in every release of click."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        is_name = bool(args) and not args[0].startswith("-") and not ctx.resilient_parsing
        if is_name and self.get_command(ctx, args[0]) is None:
            near = _nearest(args[0], self.all_names(ctx))
            hint = f"Did you mean {near}?" if near else f"`{ctx.command_path} --help` lists them."
            ctx.fail(f"No such command {args[0]!r}. {hint}")
        return super().resolve_command(ctx, args)

    def all_names(self, ctx: click.Context) -> list[str]:
        """Returns everything that names a command, also what --help does not list."""
        return self.list_commands(ctx)


def _nearest(given: str, names: Sequence[str]) -> str:
    """Returns the name that is spelled similarly, has the same letters, or begins like that; else nothing."""
    given = given.lower()
    close = difflib.get_close_matches(given, names, 1)
    # A name of two letters with these swapped is not similar for difflib.
    swapped = [name for name in names if sorted(name) == sorted(given)]
    begun = [name for name in names if len(given) > 1 and name.startswith(given)]
    return next(iter((*close, *swapped, *begun)), "")


class LazyGroup(CommandGroup):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        target = _COMMANDS.get(cmd_name) or _ALIASES.get(cmd_name)
        if target is None:
            return None
        module, _, attribute = target.partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def all_names(self, ctx: click.Context) -> list[str]:
        return [*_COMMANDS, *_ALIASES]

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # click would exit with 1
            return 128 + signal.SIGPIPE

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, names in _GROUPS.items():
            commands = [(name, self.get_command(ctx, name)) for name in names]
            with formatter.section(title):
                formatter.write_dl([(name, each.get_short_help_str(90)) for name, each in commands if each is not None])


def _print_version(ctx: click.Context, _: click.Parameter, is_set: bool) -> None:
    if is_set:
        click.echo(f"warren {__version__}")
        ctx.exit()


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_print_version, help="Show the version."
)
def cli() -> None:
    """Isolated Linux sandboxes for AI agents."""


@click.command()
@click.argument("shell", type=click.Choice(list(_COMPLETION_HINTS)))
def completion(shell: str) -> None:
    """Print a script for shell completion.

    It completes commands, options, ids of sessions and keys, and names such as those of environments.

    Example: eval "$(warren completion bash)"
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(f"# {_COMPLETION_HINTS[shell]}")
    click.echo(kind(cli, {}, "warren", "_WARREN_COMPLETE").source())


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
        remedy = exc.remedy.replace("replace_lost", "--replace-lost").replace("on_mismatch", "--on-mismatch")
        report(exc.message, remedy)
        return EXIT_WARREN_FAILED
    except ModuleNotFoundError as exc:
        report(
            f"this command needs the package {exc.name}, which is not installed", "pip install 'warren-sandbox[server]'"
        )
        return EXIT_WARREN_FAILED
    except PermissionError as exc:
        report(f"this user (uid {os.geteuid()}) has no permission for {exc.filename or exc}", _PERMISSION_HINT)
        _print_trace_for_debugging()
        return EXIT_WARREN_FAILED
    except Exception as exc:
        return _report_internal_error(exc)


def report(message: str, remedy: str = "") -> None:
    click.echo(f"warren: {message}", err=True)
    if remedy:
        click.echo(f"  hint: {remedy}", err=True)


def _report_internal_error(exc: Exception) -> int:
    report(f"internal error: {type(exc).__name__}: {exc}", "WARREN_DEBUG=1 shows where; please report it")
    _print_trace_for_debugging()
    return EXIT_WARREN_FAILED


def _print_trace_for_debugging() -> None:
    if _is_debugging():
        traceback.print_exc()


def _is_debugging() -> bool:
    from warren.config.settings import read_settings

    try:
        return read_settings().debug
    except WarrenError:
        return False


def _end_by_signal(number: int, _: FrameType | None) -> NoReturn:
    """Ends by an exception, so that unfinished work is undone on the way out."""
    raise SystemExit(128 + number)


def _fill_standard_streams() -> None:
    """Opens closed standard streams, so that no other file gets their numbers."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def _flush() -> None:
    """Ignores a reader that went away, also in the interpreter's last flush."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
