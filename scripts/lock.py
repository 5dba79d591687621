"""Writes requirements.lock: the packages of a server's environment, each with the hashes of its files.

It needs a package index. pip resolves the newest versions that pyproject.toml allows; the hashes are those of all files
that the index has of them, so that the lock fits every machine and Python. To update the versions, run:
.venv/bin/python scripts/lock.py
"""

import json
import os
import re
import subprocess
import sys
import tomllib
import urllib.request
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "requirements.lock"
_FILE = re.compile(r'href="([^"#]+)#sha256=([0-9a-f]{64})"')
_HEAD = "# Written by scripts/lock.py. Install it with: pip install --require-hashes --no-deps -r requirements.lock\n"


def main() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = [
        *project["build-system"]["requires"],
        *("editables",),  # hatchling needs it for an editable install
        *("async-timeout>=4.0.3; python_full_version < '3.11.3'",),  # redis needs it with Debian 12's Python
        *project["project"]["dependencies"],
        *project["project"]["optional-dependencies"]["server"],
    ]
    markers = {normal(re.split(r"[^\w.-]", text)[0]): text.partition(";")[2].strip() for text in wanted}
    entries = [entry(name, version, markers.get(name, "")) for name, version in sorted(resolve(wanted).items())]
    LOCK.write_text(_HEAD + "".join(entries))
    sys.stdout.write(f"{LOCK.name}: {len(entries)} packages\n")


def resolve(wanted: list[str]) -> dict[str, str]:
    argv = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--report", "-"]
    on_any_python = [text.partition(";")[0] for text in wanted]
    done = subprocess.run([*argv, *on_any_python], stdout=subprocess.PIPE, check=True)
    report: dict[str, Any] = json.loads(done.stdout)
    return {normal(item["metadata"]["name"]): item["metadata"]["version"] for item in report["install"]}


def entry(name: str, version: str, marker: str = "") -> str:
    """Returns a package's lines of the lock. `marker` says which Pythons need it: others could not install it."""
    hashes = sorted(found for file, found in files(name) if is_of(file, name, version))
    if not hashes:
        raise SystemExit(f"the index has no hashes of {name} {version}")
    return (
        f"{name}=={version}{marker and f' ; {marker}'}"
        + "".join(f" \\\n    --hash=sha256:{value}" for value in hashes)
        + "\n"
    )


@cache
def index() -> str:
    """Returns the address of the index that pip uses here: `PIP_INDEX_URL`, or what `pip config` says."""
    command = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
    said = os.environ.get("PIP_INDEX_URL") or subprocess.run(command, capture_output=True, text=True).stdout
    if not said.strip():
        raise SystemExit("set PIP_INDEX_URL to the index whose hashes are to be written")
    return said.strip().rstrip("/")


def files(name: str) -> list[tuple[str, str]]:
    with urllib.request.urlopen(f"{index()}/{name}/", timeout=60) as page:
        text = page.read().decode()
    return [(unquote(link.rpartition("/")[2]), found) for link, found in _FILE.findall(text)]


def is_of(file: str, name: str, version: str) -> bool:
    """Returns whether the file is a wheel or the sources of this version."""
    start, _, rest = file.removesuffix(".tar.gz").partition("-")
    if file.endswith(".tar.gz"):
        start, _, rest = file.removesuffix(".tar.gz").rpartition("-")
    elif not file.endswith(".whl"):
        return False
    return normal(start) == name and rest.split("-")[0] == version


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    main()
