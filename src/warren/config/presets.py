"""Finds out what the presets of network rules stand for: `python-packages`, `node-packages`, `debian-packages`,
`git-hosts`.

The operator's file says it (option egress_presets), or what pip, npm and apt of this machine are set up with; for
`git-hosts` only the file does. Sessions ask when a caller names a preset; the answer is kept for a minute. Credentials
in the address of an index stay here: neither a rule nor a variable of a sandbox has them.

    python-packages:
      allow: [packages.example.com]
      env: {PIP_INDEX_URL: https://packages.example.com/simple}
"""

import asyncio
import configparser
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

from warren.config.yaml_files import read_yaml
from warren.kernel.logs import get_log
from warren.model.egress import Preset, Presets
from warren.model.errors import InvalidRequest
from warren.model.network import PRESETS, parse_rule
from warren.model.spec import check_env

KEPT_S: Final = 60.0
_ASK_S: Final = 10.0
_PORTS: Final = {"http": 80, "https": 443}
_PIP_DEFAULTS: Final = "from pip._internal.models.index import PyPI as p; print(p.simple_url, p.file_storage_domain)"
_log = get_log(__name__)


class PresetReader:
    """`file` is the operator's; `root` and `home` are where the files of pip, npm and apt lie."""

    def __init__(
        self, file: Path | None, environ: Mapping[str, str], *, root: Path = Path("/"), home: Path | None = None
    ) -> None:
        self._file = file
        self._environ = environ
        self._root = root
        self._home = home or Path(environ.get("HOME") or "/root")
        self._found: Presets | None = None
        self._found_at = 0.0
        self._finding = asyncio.Lock()
        self._told: set[str] = set()

    async def __call__(self) -> Presets:
        async with self._finding:  # one reading at a time: it starts programs
            if self._found is None or time.monotonic() - self._found_at > KEPT_S:
                self._found = await asyncio.to_thread(self.read)
                self._found_at = time.monotonic()
            return self._found

    def read(self) -> Presets:
        """Reads all presets. Asks pip and npm themselves for what no file says, which takes up to a second."""
        known: dict[str, Preset] = {}
        problems: dict[str, str] = {}
        given = self._read_file(problems)
        readers = {"python-packages": self._pip, "node-packages": self._npm, "debian-packages": self._apt}
        for name in PRESETS:
            if name in given:
                known[name] = given[name]
            elif name not in problems:
                preset = readers[name]() if name in readers else None
                if preset is not None and preset.allow:
                    known[name] = preset
                else:
                    problems[name] = "neither the operator nor this machine's own configuration says what it is"
        return Presets(known, problems)

    # -- the operator's file

    def _read_file(self, problems: dict[str, str]) -> dict[str, Preset]:
        if self._file is None:
            return {}
        try:
            return read_presets(self._file)
        except InvalidRequest as exc:
            _log.error("presets_not_read", error=exc.message)
            problems.update(dict.fromkeys(PRESETS, "the operator's file of presets has a mistake"))
            return {}

    # -- this machine

    def _pip(self) -> Preset | None:
        values = self._pip_values()
        indexes = list(self._addresses("python-packages", values.get("index-url", "").split()))
        extra = list(self._addresses("python-packages", values.get("extra-index-url", "").split()))
        hosts = [_rule(url) for url in (*indexes, *extra)]
        if not indexes:
            default = self._ask([sys.executable, "-c", _PIP_DEFAULTS], ["python3", "-c", _PIP_DEFAULTS]).split()
            if len(default) == 2 and default[0].startswith("http"):
                indexes = [urlsplit(default[0])]
                hosts = [_rule(indexes[0]), f"{default[1]}:{_PORTS.get(indexes[0].scheme, 443)}", *hosts]
        if not indexes:
            return None
        env = {"PIP_INDEX_URL": indexes[0].geturl(), "UV_DEFAULT_INDEX": indexes[0].geturl()}
        if extra:
            env["PIP_EXTRA_INDEX_URL"] = " ".join(url.geturl() for url in extra)
        if trusted := values.get("trusted-host", "").split():
            env["PIP_TRUSTED_HOST"] = " ".join(trusted)
        return Preset(tuple(dict.fromkeys(hosts)), env)

    def _pip_values(self) -> dict[str, str]:
        """Returns pip's options as `pip config list` shows them: later files win, the environment wins over files."""
        files = [
            self._root / "etc/xdg/pip/pip.conf",
            self._root / "etc/pip.conf",
            self._home / ".pip/pip.conf",
            self._home / ".config/pip/pip.conf",
        ]
        if named := self._environ.get("PIP_CONFIG_FILE"):
            files = [] if named == "/dev/null" else [*files, Path(named)]
        values: dict[str, str] = {}
        for file in files:
            parser = configparser.RawConfigParser()
            try:
                parser.read_string(file.read_text(encoding="utf-8", errors="replace"))
            except (OSError, configparser.Error):
                continue
            for section in ("global", "install"):
                if parser.has_section(section):
                    values |= {name.replace("_", "-"): value for name, value in parser.items(section)}
        for name in ("index-url", "extra-index-url", "trusted-host"):
            if given := self._environ.get(f"PIP_{name.upper().replace('-', '_')}"):
                values[name] = given
        return values

    def _npm(self) -> Preset | None:
        given = self._environ.get("npm_config_registry") or self._environ.get("NPM_CONFIG_REGISTRY") or ""
        for file in (self._home / ".npmrc", self._root / "usr/etc/npmrc", self._root / "etc/npmrc"):
            given = given or _npmrc_registry(file)
        given = given or self._ask(["npm", "config", "get", "registry"]).strip()
        urls = list(self._addresses("node-packages", [given]))
        return Preset((_rule(urls[0]),), {"npm_config_registry": urls[0].geturl()}) if urls else None

    def _apt(self) -> Preset | None:
        """Returns rules, but no variables: apt inside a sandbox reads the sources of its image."""
        folder = self._root / "etc/apt"
        texts = [_text(folder / "sources.list"), *map(_text, sorted((folder / "sources.list.d").glob("*.list")))]
        found = [match for text in texts for match in re.findall(r"^\s*deb\s+(?:\[[^\]]*\]\s+)?(\S+)", text, re.M)]
        for file in sorted((folder / "sources.list.d").glob("*.sources")):
            for line in re.findall(r"^URIs:(.*)$", _text(file), re.M | re.I):
                found += line.split()
        return Preset(tuple(dict.fromkeys(_rule(url) for url in self._addresses("debian-packages", found))))

    def _addresses(self, preset: str, texts: Iterable[str]) -> Iterator[SplitResult]:
        """Returns the addresses that a sandbox could use, without credentials."""
        for text in texts:
            try:
                url = urlsplit(text)
                if url.scheme not in _PORTS or not url.hostname:
                    continue
                parse_rule(_rule(url))
            except (ValueError, InvalidRequest):
                continue
            if "@" in url.netloc:
                if preset not in self._told:
                    _log.warning("preset_credentials_removed", preset=preset, host=url.hostname)
                    self._told.add(preset)
                url = url._replace(netloc=url.netloc.rpartition("@")[2])
            yield url

    def _ask(self, *commands: list[str]) -> str:
        """Returns what the first of the programs that runs says; nothing if none runs."""
        for command in commands:
            try:
                done = subprocess.run(
                    command, capture_output=True, timeout=_ASK_S, cwd="/", env=dict(self._environ), check=True
                )
            except (OSError, subprocess.SubprocessError):
                continue
            return done.stdout.decode(errors="replace")
        return ""


def read_presets(path: Path) -> dict[str, Preset]:
    """Raises InvalidRequest, with the file and what is wrong in it."""
    values = read_yaml(path)
    if not isinstance(values, dict):
        raise InvalidRequest(f"{path}: presets by name are expected")
    return {name: _read_preset(path, name, value) for name, value in values.items()}


def _read_preset(path: Path, name: Any, value: Any) -> Preset:
    where = f"{path}: {name}"
    if name not in PRESETS:
        raise InvalidRequest(f"{path}: there is no preset {name!r}", remedy=f"there are: {', '.join(PRESETS)}")
    if not isinstance(value, dict) or not set(value) <= {"allow", "env"} or not value.get("allow"):
        raise InvalidRequest(f"{where} needs `allow`, a list of rules, and may have `env`, variables with their values")
    allow, env = value["allow"], value.get("env") or {}
    if not isinstance(allow, list) or not isinstance(env, dict):
        raise InvalidRequest(f"{where}: `allow` must be a list and `env` must have names and values")
    for key, text in env.items():
        if not isinstance(key, str) or not isinstance(text, str):
            raise InvalidRequest(f"{where}: env.{key} must be a text; put it in quotes")
        check_env(key, text)
        if re.search(r"://[^/\s]*@", text):
            raise InvalidRequest(f"{where}: env.{key} has credentials, which every sandbox could read")
    try:
        return Preset(tuple(str(parse_rule(str(rule))) for rule in allow), env)
    except InvalidRequest as exc:
        raise InvalidRequest(f"{where}: {exc.message}", remedy=exc.remedy) from exc


def _rule(url: SplitResult) -> str:
    host = f"[{url.hostname}]" if ":" in (url.hostname or "") else url.hostname
    return f"{host}:{url.port or _PORTS[url.scheme]}"


def _npmrc_registry(file: Path) -> str:
    found = re.findall(r"^\s*registry\s*=\s*(\S+)", _text(file), re.M)
    return found[-1] if found else ""


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
