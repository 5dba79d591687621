"""The official SDKs of E2B, as their packages are, against a real server: each program of `programs` with each version.

In one-port mode the SDK gets the server's address; in domain mode it makes up host names below a domain, over TLS with
a private authority. `make e2b-sdks` installs the SDKs.
"""

import contextlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import warm_parent
from certificates import NAME, make_certificates
from copied_image import add_image
from e2e.image_state import new_image_state
from local_names import LocalNames
from machine.test_documents import SHOWN_SERVER, fenced
from marks import first_of
from server_process import ServerProcess, clean_environ, running_server

from warren.images.trees.layers import flatten

ROOT = Path(__file__).parents[2]
SDKS = ROOT / "build" / "e2b-sdks"
NODE = str(SDKS / "js" / "node_modules" / ".bin" / "node")  # that of the distribution may be too old
PROGRAMS = Path(__file__).parent / "programs"
VERSIONS = sorted((file.stem for file in (PROGRAMS.parent / "sdks").glob("*.txt")), key=lambda text: text.split("."))
NEWEST = max(VERSIONS, key=lambda text: [int(part) for part in text.split(".")])
JS = "js"
_NOT_PROGRAMS = {"checks.py", "checks.mjs"}
_OF_INTERPRETER = re.compile(r"e2b_code_interpreter|@e2b/code-interpreter")
KEY = "wk_" + "k" * 40
MODES = ("one-port", "domain")
_CORE = ("sandboxes.py", "processes.py", "files.py", "volumes.py", "persistence.py")

pytestmark = [pytest.mark.timeout(300), pytest.mark.group_by("world", "sdk")]


def has_interpreter(sdk: str) -> bool:
    return sdk == JS or "e2b-code-interpreter==" in (PROGRAMS.parent / "sdks" / f"{sdk}.txt").read_text()


def programs(sdk: str) -> list[str]:
    files = sorted(PROGRAMS.glob("*.mjs" if sdk == JS else "*.py"))
    runnable = [file for file in files if file.name not in _NOT_PROGRAMS]
    return [file.name for file in runnable if has_interpreter(sdk) or not _OF_INTERPRETER.search(file.read_text())]


def case(sdk: str, name: str) -> object:
    """`make test` runs five programs with the newest version."""
    is_extended = sdk != NEWEST or name not in _CORE
    return pytest.param(sdk, name, id=f"{sdk}-{name}", marks=[pytest.mark.extended] if is_extended else [])


CASES = [case(sdk, name) for sdk in (*VERSIONS, JS) for name in programs(sdk)]


@dataclass(frozen=True)
class World:
    """What a program needs to use the server: variables, and names that lead to it."""

    server: ServerProcess
    environ: dict[str, str]
    names: LocalNames

    def run(self, argv: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
        variables = {"PATH": os.environ["PATH"], "HOME": str(folder), **self.environ}
        inside = self.names.command(argv)
        return subprocess.run(
            inside, cwd=folder, env=variables, capture_output=True, text=True, timeout=280, check=False
        )


@pytest.fixture(scope="session")
def code_image(image_cache: Path) -> Path:
    """The image of the code interpreter for tests: base with matplotlib, and the SDKs' Node, which is as new as that of
    the real image. That one has more, and takes minutes.

    It is made once for each version of base, and kept.
    """
    base = (image_cache / "images" / "base").resolve()
    kept = SDKS / f"code-interpreter-with-node-{base.name}"
    if not kept.exists():
        with tempfile.TemporaryDirectory(dir=SDKS) as folder:
            made = Path(folder) / "image"
            made.mkdir()
            flatten(base / "rootfs", [], made / "rootfs")
            shutil.copy(base / "image.json", made)
            (python,) = (made / "rootfs" / "usr" / "bin").glob("python3.[0-9]*[0-9]")
            target = made / "rootfs" / "usr" / "local" / "lib" / python.name / "dist-packages"
            wanted = ["--python-version", python.name.removeprefix("python"), "--only-binary", ":all:", *_DRAWING]
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--target", target]
            subprocess.run([*pip, *wanted], check=True, capture_output=True)
            shutil.copy(NODE, made / "rootfs" / "usr" / "local" / "bin" / "node")
            with contextlib.suppress(OSError):  # another process was faster
                made.rename(kept)
    return kept


_DRAWING = ("numpy==2.4.6", "matplotlib==3.11.2")


def new_state(image_cache: Path, code_image: Path | None) -> Path:
    """With images of its own, because programs build some; their files are hard links."""
    state = new_image_state(image_cache)
    if code_image is None:
        return state
    add_image(state, "code-interpreter", code_image)
    return state


@pytest.fixture(scope="module", params=first_of(MODES))
def world(
    request: pytest.FixtureRequest, image_cache: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    # Only extended tests use the code interpreter, and making its image takes a while.
    is_wanted = any(item.get_closest_marker("extended") for item in request.session.items if item.path == request.path)
    code_image = request.getfixturevalue("code_image") if is_wanted else None
    state, folder = new_state(image_cache, code_image), tmp_path_factory.mktemp("names")
    certificates = make_certificates(folder, f"*.{NAME}")
    flags, tls, settings = ["--pool-size", "1", "--cpus", "2"], None, {"WARREN_API_KEY": KEY}
    if request.param == "domain":
        flags += ["--tls-cert", str(certificates.cert), "--tls-key", str(certificates.key)]
        settings["WARREN_PREVIEW_DOMAIN"] = NAME
        tls = certificates.client
    try:
        with running_server(state, *flags, tls=tls, **settings) as server, LocalNames(folder, NAME) as names:
            if request.param == "domain":
                known = {"SSL_CERT_FILE": str(certificates.ca), "NODE_EXTRA_CA_CERTS": str(certificates.ca)}
                where = {"E2B_DOMAIN": f"{NAME}:{server.port}", **known}
            else:
                where = dict.fromkeys(("E2B_API_URL", "E2B_SANDBOX_URL", "E2B_VOLUME_API_URL"), server.url)
            yield World(server, {"E2B_API_KEY": e2b_key(server, certificates.ca), **where}, names)
    finally:
        shutil.rmtree(state, ignore_errors=True)


def e2b_key(server: ServerProcess, ca: Path) -> str:
    argv = [sys.executable, "-m", "warren.cli.main", "keys", "create", "sdks", "--e2b", "-q"]
    own = {"WARREN_URL": server.url, "WARREN_API_KEY": KEY, "SSL_CERT_FILE": str(ca)}
    made = warm_parent.run(argv, env={**clean_environ(), **own}, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    key = made.stdout.strip()
    assert re.fullmatch(r"e2b_[0-9a-f]{80}", key)
    return key


def command(sdk: str, name: str, folder: Path) -> list[str]:
    """node finds packages beside the file that imports them, so its programs are copied to where the packages are."""
    assert (SDKS / sdk).exists(), "`make e2b-sdks` installs the SDKs that this test uses"
    if sdk != JS:
        return [str(SDKS / sdk / "bin" / "python"), "-B", str(PROGRAMS / name)]
    (folder / "node_modules").symlink_to(SDKS / "js" / "node_modules")
    for file in PROGRAMS.glob("*.mjs"):
        shutil.copy(file, folder)
    return [NODE, str(folder / name)]


@pytest.mark.parametrize(("sdk", "name"), CASES)
def test_a_program_comes_to_its_end(world: World, sdk: str, name: str, tmp_path: Path) -> None:
    ended = world.run(command(sdk, name, tmp_path), tmp_path)
    assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr}\n---- server\n{world.server.log[-3000:]}"
    assert ended.stdout.splitlines()[-1].startswith("ok, e2b ")
    listed = world.run([str(SDKS / NEWEST / "bin" / "python"), "-B", "-c", _LEFT], tmp_path)
    assert json.loads(listed.stdout) == [], "the program left sandboxes behind"


_LEFT = "import json, e2b; print(json.dumps([info.sandbox_id for info in e2b.Sandbox.list().next_items()]))"


# -- the page about it

PAGE = ROOT / "docs" / "e2b.md"


@pytest.mark.parametrize("world", ["one-port"], indirect=True)
@pytest.mark.extended
def test_the_blocks_of_the_page_work(world: World, tmp_path: Path) -> None:
    (tmp_path / "node_modules").symlink_to(SDKS / "js" / "node_modules")
    run = {"python": [str(SDKS / NEWEST / "bin" / "python"), "-c"], "js": [NODE, "--input-type=module", "-e"]}
    parts = [f'warren() {{ PYTHONPATH={ROOT / "src"} {sys.executable} -m warren.cli.main "$@"; }}']
    parts += [f"export WARREN_API_KEY={KEY} WARREN_CONFIG=/dev/null"]
    for kind, text in fenced(PAGE):
        assert kind in ("sh", "toml", "text", *run), f"nothing here can run a block that is marked {kind!r}"
        if kind == "toml":
            (tmp_path / "options.toml").write_text(text)
            parts.append("warren config --config options.toml")
        elif kind != "text":
            text = text.replace(SHOWN_SERVER, world.server.url)
            parts.append(text if kind == "sh" else shlex.join([*run[kind], text]))
    outcome = world.run(["bash", "-eux", "-c", "\n".join(parts)], tmp_path)
    assert outcome.returncode == 0, f"{outcome.stdout[-1000:]}\n{outcome.stderr[-3000:]}"


# -- nothing is left out

_CALLS = """
import json, e2b_code_interpreter as sdk
from e2b.sandbox_sync.commands.command import Commands
from e2b.sandbox_sync.commands.pty import Pty
from e2b.sandbox_sync.filesystem.filesystem import Filesystem
kinds = [sdk.Sandbox, sdk.CommandHandle, sdk.WatchHandle, sdk.SandboxPaginator, sdk.Git, Commands, Pty, Filesystem]
names = {name for kind in kinds for name in dir(kind) if callable(getattr(kind, name)) and not name.startswith("_")}
print(json.dumps(sorted(names)))
"""
_JS_CALLS = """
import { Sandbox } from '@e2b/code-interpreter'
const sandbox = new Sandbox({ sandboxId: 'a', envdVersion: '0.6.13', apiKey: 'e2b_00' })
const names = new Set()
for (let kind of [sandbox, sandbox.commands, sandbox.pty, sandbox.files, Sandbox])
  for (; kind && ![Object.prototype, Function.prototype].includes(kind); kind = Object.getPrototypeOf(kind))
    for (const [name, { value }] of Object.entries(Object.getOwnPropertyDescriptors(kind)))
      if (typeof value === 'function') names.add(name)
console.log(JSON.stringify([...names].sort()))
"""
"""Private methods of JavaScript are in it as well."""
_PRIVATE = {
    *("constructor", "checkHealth", "createSandbox", "connectSandbox", "fileUrl", "forkSandbox", "start"),
    *("getJupyterRequestUrl", "handleConnectionError", "handleRequestError", "resolveApiOpts", "resolveOpts"),
}


@pytest.mark.parametrize("sdk", [NEWEST, JS])
@pytest.mark.extended
def test_every_call_is_used_by_a_program(sdk: str, tmp_path: Path) -> None:
    (tmp_path / "node_modules").symlink_to(SDKS / "js" / "node_modules")
    python = [str(SDKS / NEWEST / "bin" / "python"), "-c", _CALLS]
    argv = [NODE, "--input-type=module", "-e", _JS_CALLS] if sdk == JS else python
    calls = json.loads(warm_parent.run(argv, cwd=tmp_path, check=True, capture_output=True).stdout)
    text = "".join((PROGRAMS / name).read_text() for name in programs(sdk))
    unused = [name for name in calls if name not in _PRIVATE and not re.search(rf"\b{name}\b", text)]
    assert unused == []
