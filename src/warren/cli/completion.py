"""`warren completion`: what makes a shell complete commands, options and sessions."""

import click
from click.shell_completion import get_completion_class

_HOW = {
    "bash": 'eval "$(warren completion bash)"   # in ~/.bashrc',
    "zsh": 'eval "$(warren completion zsh)"    # in ~/.zshrc',
    "fish": "warren completion fish | source    # in ~/.config/fish/config.fish",
}


@click.command()
@click.argument("shell", type=click.Choice(list(_HOW)))
def completion(shell: str) -> None:
    """Print a script for shell completion.

    It completes commands, options and session ids.

    Example: eval "$(warren completion bash)"
    """
    from warren.cli.main import cli

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(f"# {_HOW[shell]}")
    click.echo(kind(cli, {}, "warren", "_WARREN_COMPLETE").source())
