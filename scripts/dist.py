"""Writes the files of a release: `make dist` runs it with the Python of build/dist-venv, which has zig.

These are the sources; from them a wheel for each machine, and the wheels of packages/; requirements.lock, the versions
that were tested; a list of all components (CycloneDX); SHA256SUMS of all these.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import uuid
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
MACHINES = ("x86_64", "aarch64")
_LOCKED = re.compile(r"^([\w.-]+)==(\S+)", re.M)

Component = dict[str, Any]


def main(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    build("sdist", ROOT, folder)
    (sources,) = folder.iterdir()
    with tempfile.TemporaryDirectory() as place:
        with tarfile.open(sources) as archive:
            archive.extractall(place, filter="data")
        for machine in MACHINES:
            build("wheel", Path(place) / sources.name.removesuffix(".tar.gz"), folder, WARREN_WHEEL_ARCH=machine)
    for project in sorted((ROOT / "packages").glob("*/pyproject.toml")):
        build("wheel", project.parent, folder)
    shutil.copy(ROOT / "requirements.lock", folder)
    name, _, release = sources.name.removesuffix(".tar.gz").rpartition("-")
    bom = describe(name.replace("_", "-"), release, (ROOT / "requirements.lock").read_text())
    (folder / f"{name}-{release}.cdx.json").write_text(json.dumps(bom, indent=2) + "\n")
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(folder.iterdir())]
    (folder / "SHA256SUMS").write_text("".join(sums))
    sys.stdout.write("".join(f"{path}\n" for path in sorted(folder.iterdir())))


def build(target: str, source: Path, folder: Path, **environ: str) -> None:
    cache = os.environ.get("ZIG_GLOBAL_CACHE_DIR") or str(ROOT / "build" / "zig-cache")
    environ = {**os.environ, "ZIG_GLOBAL_CACHE_DIR": cache, "ZIG_LOCAL_CACHE_DIR": cache, **environ}
    argv = [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", str(folder)]
    done = subprocess.run(argv, cwd=source, env=environ, capture_output=True, text=True)
    if done.returncode:
        sys.stderr.write(done.stdout + done.stderr)
        raise SystemExit(f"dist: the {target} of {source.name} could not be built, see above")


def describe(name: str, release: str, lock: str) -> dict[str, Any]:
    """Returns the components of a server in CycloneDX 1.6: the locked packages, and the libc in agent and launcher."""
    whole = component("application", name, release, f"pkg:pypi/{name}@{release}", "MIT")
    parts = [component("library", each, found, f"pkg:pypi/{each}@{found}") for each, found in _LOCKED.findall(lock)]
    parts.append(component("library", "musl", musl_version(), f"pkg:generic/musl@{musl_version()}", "MIT"))
    compiler = component("application", "ziglang", version("ziglang"), f"pkg:pypi/ziglang@{version('ziglang')}")
    refs = [part["bom-ref"] for part in parts]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": uuid.uuid5(uuid.NAMESPACE_URL, " ".join([whole["bom-ref"], *refs])).urn,
        "version": 1,
        "metadata": {"component": whole, "tools": {"components": [compiler]}},
        "components": parts,
        "dependencies": [{"ref": whole["bom-ref"], "dependsOn": refs}],
    }


def component(kind: str, name: str, release: str, purl: str, license_id: str = "") -> Component:
    values = {"type": kind, "bom-ref": purl, "name": name, "version": release, "purl": purl}
    return {**values, "licenses": [{"license": {"id": license_id}}]} if license_id else values


def musl_version() -> str:
    """Returns the version of the libc that zig links."""
    found = find_spec("ziglang")
    assert found is not None
    assert found.origin is not None
    header = Path(found.origin).parent / "lib/libc/musl/src/internal/version.h"
    return header.read_text().split('"')[1]


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
