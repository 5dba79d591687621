"""`warren shell`: an interactive terminal, in a fresh sandbox of this machine or in a session of a server."""

import asyncio

import click

from warren.cli.one_off import Wanted, sandbox_options, until_signal, use_fresh_sandbox
from warren.cli.run import exit_code_of
from warren.cli.terminal import check_terminal, converse, converse_with_server, size_here
from warren.config.settings import read_settings
from warren.interfaces.sandbox import Sandbox
from warren.model.operations import Command

_SHELL = "command -v bash >/dev/null && exec bash; exec sh"


@click.command()
@sandbox_options
@click.option("--user", default="", metavar="U", help="User inside the sandbox.  [sandboxuser]")
@click.option("--cwd", default="", metavar="D", help="Directory to start in.  [/workspace]")
@click.option("--session", default="", metavar="S", help="Open it in this session of a server.")
@click.option("--thread", default="", metavar="T", help="Open it in this thread's session of a server.")
@click.option("--url", default="", metavar="URL", help="With --session or --thread: the server.  [WARREN_URL]")
@click.option("--json", "as_json", is_flag=True, hidden=True)
def shell(user: str, cwd: str, session: str, thread: str, url: str, as_json: bool, **options: object) -> int:
    """Open an interactive terminal in a sandbox.

    In a fresh one of this machine; with --session or --thread, in a session of a server.

    Example: warren shell --thread conv-42
    """
    instead = "warren exec" if session or thread else "warren run"
    if as_json:
        raise click.UsageError(f"a terminal is for a person, not for a program: use `{instead} --json`")
    check_terminal("warren shell", instead)
    settings = read_settings()
    env = {"TERM": settings.terminal}
    if session or thread:
        _check_alone(session, thread, options)
        return _on_server(url, session, thread, {"env": env, "user": user, "cwd": cwd})
    if url:
        raise click.UsageError("--url needs --session or --thread")
    command = Command(argv=("/bin/sh", "-c", _SHELL), env=env, user=user, cwd=cwd, terminal=size_here())
    wanted = Wanted(**options)  # type: ignore[arg-type]
    return use_fresh_sandbox(settings, wanted, lambda sandbox: _converse(sandbox, command))


async def _converse(sandbox: Sandbox, command: Command) -> int:
    process = await sandbox.start(command, follow=True)
    return exit_code_of(await converse(process), command)


def _check_alone(session: str, thread: str, options: dict[str, object]) -> None:
    """A session is there already: what its sandbox is like was said when it was created."""
    if session and thread:
        raise click.UsageError("give --session or --thread, not both")
    context = click.get_current_context()
    for name in options:
        if context.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT:
            flag = "--env" if name == "environment" else f"--{name}"
            raise click.UsageError(f"{flag} is for a fresh sandbox; `warren create` makes a session with it")


def _on_server(url: str, session: str, thread: str, options: dict[str, object]) -> int:
    from warren.cli import remote

    with remote.Server(url) as server:
        session_id = server.find_or_make(session, thread)
        command = {"command": ["/bin/sh", "-c", _SHELL], **options}

        async def talk() -> int:
            ended = await converse_with_server(server.url, server.key, session_id, command)
            return remote.exit_code_of(ended, None)

        return asyncio.run(until_signal(talk()))
