"""`warren support-bundle`: what somebody needs to know who is to help, in one file, without secrets."""

import asyncio
import io
import json
import os
import platform
import re
import shutil
import subprocess
import tarfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import click

from warren import __version__
from warren.cli.config import option_values
from warren.cli.options import url_option
from warren.cli.remote import RemoteServer
from warren.config.options import OPTIONS
from warren.config.settings import Settings, read_settings
from warren.model.errors import InvalidRequest, WarrenError

_LOG_BYTES: Final = 1024 * 1024
_JOURNAL_LINES: Final = 5000
_JOURNAL_S: Final = 60
_KEY: Final = re.compile(
    rb"wk_[0-9a-z]+_[0-9a-f]{16,}|e2b_[0-9a-f]{20,}|w[et]t_[0-9a-f]{32}_[0-9a-f]{40}|(?i:bearer) +[^ \"]+"
)


@click.command("support-bundle")
@click.argument("file", default="", metavar="[FILE]")
@url_option
def support_bundle(file: str, url: str) -> None:
    """Write what is needed to find a fault into one tar.gz.

    What doctor finds, every option (secrets only as "set"), versions, the server's figures, and the last of its logs.
    Look through it before you send it: logs name sessions, tenants and addresses.

    Example: sudo warren support-bundle
    """
    settings = read_settings()
    path = Path(file or time.strftime("warren-support-%Y%m%d-%H%M%S.tar.gz"))
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError as exc:
        raise InvalidRequest(f"{path} exists already", remedy="name another file, or none") from exc
    parts = {
        "versions.json": _json(_versions()),
        "config.json": _json({"options": option_values(settings), "warnings": settings.warnings}),
        "doctor.json": _json(_doctor(settings)),
        "server.json": _json(_server_figures(url)),
        **_logs(settings),
    }
    secrets = _secrets(settings)
    with open(fd, "wb") as stream, tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for name, content in parts.items():
            _add(archive, f"warren-support/{name}", _without_secrets(content, secrets))
    click.echo(f"{path}: {', '.join(parts)}")


def _versions() -> dict[str, Any]:
    try:
        system = platform.freedesktop_os_release().get("PRETTY_NAME", "")
    except OSError:
        system = ""
    return {
        "warren": __version__,
        "python": platform.python_version(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "system": system,
        "uid": os.geteuid(),
        "load": os.getloadavg(),
    }


def _doctor(settings: Settings) -> Any:
    from warren.app.wiring import build_images, build_provider, build_registry
    from warren.doctor.checkup import checkup

    async def check() -> list[dict[str, Any]]:
        provider = build_provider(settings)
        try:
            directories = {"state_dir": settings.state_dir, "bin_dir": settings.bin_dir}
            images, problems = build_images(settings), build_registry(settings).all_problems()
            found = checkup(provider, images, problems, docker_url=settings.docker_url, **directories)
            return [asdict(each) async for each in found]
        finally:
            await provider.close()

    return _or_error(lambda: asyncio.run(check()))


def _server_figures(url: str) -> Any:
    def ask() -> dict[str, Any]:
        with RemoteServer(url) as server:
            return {"version": server.call("GET", "/version"), "stats": server.backend.stats()}

    return _or_error(ask)


def _or_error(get: Any) -> Any:
    """Returns a part of the bundle, or why it cannot be had: the other parts are still worth sending."""
    try:
        return get()
    except (WarrenError, OSError) as exc:
        return {"error": f"{type(exc).__name__}: {exc}"}


def _logs(settings: Settings) -> dict[str, bytes]:
    found = {}
    state = settings.state_dir
    places = [settings.log_file] if settings.log_file else []
    for path in (
        *places,
        *state.glob("server.log*"),
        *state.glob("server.out"),
        *state.glob("cluster/*.log"),
        *state.glob("unit/*.log"),
    ):
        try:
            with path.open("rb") as file:
                file.seek(max(0, path.stat().st_size - _LOG_BYTES))
                found[f"logs/{path.parent.name}-{path.name}"] = file.read()
        except OSError as exc:
            found[f"logs/{path.parent.name}-{path.name}"] = f"cannot be read: {exc}\n".encode()
    if shutil.which("journalctl"):
        command = ["journalctl", "-u", "warren", "-n", str(_JOURNAL_LINES), "--no-pager"]
        try:
            journal = subprocess.run(command, capture_output=True, timeout=_JOURNAL_S).stdout
            found["logs/journal"] = journal[-_LOG_BYTES:]
        except (subprocess.TimeoutExpired, OSError) as exc:
            found["logs/journal"] = f"cannot be read: {exc}\n".encode()
    return found


def _secrets(settings: Settings) -> list[bytes]:
    values = [getattr(settings, option.attribute) for option in OPTIONS.values() if option.secret]
    flat = [text for value in values for text in (value if isinstance(value, tuple) else (value,)) if text]
    return [text.encode() for text in flat if len(text) >= 4]


def _without_secrets(content: bytes, secrets: list[bytes]) -> bytes:
    for secret in secrets:
        content = content.replace(secret, b"(secret)")
    return _KEY.sub(b"(key)", content)


def _json(values: Any) -> bytes:
    return json.dumps(values, indent=2, default=str).encode() + b"\n"


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mtime, info.mode = len(content), int(time.time()), 0o600
    archive.addfile(info, io.BytesIO(content))
