"""`warren service`: the server as a service of systemd, which starts it with the machine and keeps its log."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import click

from warren.cli.main import CommandGroup
from warren.config.settings import Settings, given_variables, read_settings
from warren.model.errors import Unavailable

NAME: Final = "warren"
UNIT: Final = Path("/etc/systemd/system/warren.service")
ENVIRONMENT: Final = Path("/etc/warren/service.env")

# KillMode=process: sandboxes outlive the server, and the next start takes them over.
_TEXT: Final = """\
[Unit]
Description=Warren: isolated Linux sandboxes for AI agents
Wants=network-online.target
After=network-online.target docker.service

[Service]
Type=exec
EnvironmentFile=-{environment}
ExecStart={python} -m warren.cli.main serve
Restart=on-failure
RestartSec=2
KillMode=process
TimeoutStopSec={stop_s}
Delegate=yes
LimitNOFILE=1048576
TasksMax=infinity

[Install]
WantedBy=multi-user.target
"""


@click.group(cls=CommandGroup)
def service() -> None:
    """Run the server as a service of systemd."""


@service.command()
@click.option("--print", "show", is_flag=True, help="Print the unit, and change nothing.")
def install(show: bool) -> None:
    """Install the service and start it, now and with the machine.

    The WARREN_… settings of this shell go with it, into a file that only root can read. A service that is there already
    gets the new ones, and starts again with them. Its log is in the journal, which systemd keeps within bounds:
    `journalctl -u warren`.

    Example: sudo WARREN_PORT=8080 warren service install
    """
    settings = read_settings()
    text = unit_text(settings)
    if show:
        click.echo(text, nl=False)
        return
    from warren.cli.keys import StoredKeys

    _check_systemd()
    StoredKeys(settings.state_dir).check_admin_key(settings.api_key)
    _write(ENVIRONMENT, "".join(f"{line}\n" for line in environment_lines(settings)), 0o600)
    _write(UNIT, text, 0o644)
    _systemctl("daemon-reload")
    _systemctl("enable", NAME)
    _systemctl("restart", NAME)  # a service that runs already has the old settings; its sandboxes outlive the restart
    click.echo(f"The service {NAME} runs: {UNIT}, with the settings in {ENVIRONMENT}.")
    click.echo("  log: journalctl -u warren    state: systemctl status warren    remove: warren service uninstall")


@service.command("uninstall")
def uninstall_service() -> None:
    """Stop the service and remove it; sandboxes and state stay.

    Example: sudo warren service uninstall
    """
    if not remove_service():
        raise Unavailable(f"the service is not installed: there is no {UNIT}")
    click.echo(f"The service {NAME} is stopped and removed; `warren uninstall --purge` removes the rest.")


def remove_service() -> bool:
    """Stops and removes the service; returns whether there was one."""
    if not UNIT.exists():
        return False
    _check_systemd()
    _systemctl("disable", "--now", NAME)
    for path in (UNIT, ENVIRONMENT):
        path.unlink(missing_ok=True)
    _systemctl("daemon-reload")
    return True


def unit_text(settings: Settings) -> str:
    return _TEXT.format(environment=ENVIRONMENT, python=sys.executable, stop_s=round(settings.stop_grace_s) + 30)


def environment_lines(settings: Settings) -> list[str]:
    """Returns the variables of this shell that are settings of the server, as systemd reads them from a file."""
    return [f"{name}={_quoted(value)}" for name, value in given_variables(settings).items()]


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _check_systemd() -> None:
    if not shutil.which("systemctl") or not Path("/run/systemd/system").is_dir():
        raise Unavailable(
            "systemd does not run on this machine",
            remedy="`warren service install --print` shows what the service would be, for another manager of services",
        )


def _systemctl(*arguments: str) -> None:
    done = subprocess.run(["systemctl", *arguments], capture_output=True, text=True)
    if done.returncode:
        reason = done.stderr.strip() or f"exit code {done.returncode}"
        raise Unavailable(f"systemctl {' '.join(arguments)} failed: {reason}", remedy="journalctl -u warren says more")


def _write(path: Path, text: str, mode: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode), "w") as file:
        os.fchmod(file.fileno(), mode)
        file.write(text)
