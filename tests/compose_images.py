"""The images that deploy/compose.yml stands on, made without a registry, in a Docker engine without a network.

`debian:12-slim` is made by mmdebstrap and brings the packages and wheels that the Dockerfiles install, so these are
built as they are. The images of Redis and nginx are Debian's programs with what compose.yml expects of the official
ones. Only the base needs a network; it is kept until a Dockerfile, the lock or this file changes.
"""

import hashlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from deploy_files import DEPLOY, ROOT
from docker_engine import DockerEngine

from warren.images.trees.own_images import host_suite

_BASE: Final = "debian:12-slim"  # the default of the Dockerfiles; here it is the release of this machine
_LOCK: Final = ROOT / "requirements.lock"
_DOCKERFILES: Final = (DEPLOY / "Dockerfile.coordinator", DEPLOY / "Dockerfile.worker")
_INSTALL: Final = "RUN apt-get update && apt-get install -y --no-install-recommends"
_REDIS: Final = f"""\
FROM {_BASE}
RUN groupadd --gid 999 redis && useradd --uid 999 --gid 999 redis && install -d -o redis -g redis /data
{_INSTALL} redis-server
VOLUME /data
"""
_NGINX: Final = f"""\
FROM {_BASE}
{_INSTALL} curl nginx-light
RUN rm /etc/nginx/sites-enabled/default && ln -sf /dev/stdout /var/log/nginx/access.log
CMD ["nginx", "-g", "daemon off;"]
"""
_FINISH: Final = """
cp -r debs wheels "$1/opt/"
rm -f "$1"/etc/apt/sources.list.d/*
echo 'deb [trusted=yes] file:/opt/debs ./' >"$1/etc/apt/sources.list"
printf '[global]\\nno-index = true\\nfind-links = /opt/wheels\\n' >"$1/etc/pip.conf"
printf '#!/bin/sh\\nexit 101\\n' >"$1/usr/sbin/policy-rc.d"  # nothing is started when it is installed
chmod 755 "$1/usr/sbin/policy-rc.d"
"""


def prepare(engine: DockerEngine, cache: Path, services: Mapping[str, Mapping[str, str]]) -> None:
    """Makes the base, and the images of Redis and nginx by the names that compose.yml has for them."""
    with _base(cache).open("rb") as tar:
        subprocess.run(
            ["docker", "--host", engine.url, "import", "-", _BASE], stdin=tar, capture_output=True, check=True
        )
    for name, text in (("redis", _REDIS), ("nginx", _NGINX)):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "Dockerfile").write_text(text)
            arguments = ("--network", "none", "--tag", services[name]["image"], folder)
            built = engine.docker("build", *arguments, check=False)
        assert built.returncode == 0, built.stdout + built.stderr


def _base(cache: Path) -> Path:
    """Returns the base as a tar."""
    sources = (_LOCK, *_DOCKERFILES, Path(__file__))
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:12]
    kept = cache / f"debian-{digest}.tar"
    if not kept.exists():
        cache.mkdir(parents=True, exist_ok=True)
        for old in cache.glob("debian-*.tar"):
            old.unlink()
        with tempfile.TemporaryDirectory() as folder:
            _make_base(Path(folder), kept)
    return kept


def _make_base(folder: Path, kept: Path) -> None:
    _fetch_packages(folder / "debs", sorted({*_packages(), "?priority(required)", "apt", "usr-is-merged"}))
    # For the Python of the distribution, which the images have; the one of the tests may be another.
    pip = (sys.executable, "-m", "pip", "--python", "/usr/bin/python3", "--disable-pip-version-check", "download")
    _run(*pip, "--dest", f"{folder}/wheels", "--require-hashes", "--no-deps", "--requirement", str(_LOCK))
    new = kept.with_name(f".{os.getpid()}.tar")
    options = [
        *("--mode=root", "--variant=essential", "--include=?priority(required)", "--include=apt"),
        *(f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("doc", "locale", "man")),
        *("--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr", f"--customize-hook={_FINISH}"),
    ]
    # Without the name of a release: a plain folder of packages has none.
    _run("mmdebstrap", *options, "", str(new), f"deb [trusted=yes] copy:{folder}/debs ./", at=folder)
    new.rename(kept)


def _packages() -> Iterator[str]:
    """Yields what the Dockerfiles install."""
    for text in (*(path.read_text() for path in _DOCKERFILES), _REDIS, _NGINX):
        for names in re.findall(r"--no-install-recommends((?:[ \\\n]+[a-z0-9][a-z0-9.+-]*)+)", text):
            yield from names.replace("\\", " ").split()


def _fetch_packages(folder: Path, packages: list[str]) -> None:
    """Downloads packages with all they need from this machine's sources, and writes an index for apt-get."""
    (folder / "partial").mkdir(parents=True)
    (folder / "nothing-installed").touch()
    options = {
        "Dir::State::status": folder / "nothing-installed",
        "Dir::Cache::archives": folder,
        "APT::Default-Release": host_suite(),
        "APT::Install-Recommends": "false",
        "APT::Sandbox::User": "root",
    }
    _run("apt-get", "update")
    given = [f"--option={name}={value}" for name, value in options.items()]
    _run("apt-get", *given, "--yes", "--download-only", "install", *packages)
    with (folder / "Packages").open("w") as index:
        for deb in sorted(folder.glob("*.deb")):
            digest = hashlib.sha256(deb.read_bytes()).hexdigest()
            index.write(_run("dpkg-deb", "--field", str(deb)))
            index.write(f"Filename: ./{deb.name}\nSize: {deb.stat().st_size}\nSHA256: {digest}\n\n")


def _run(*command: str, at: Path | None = None) -> str:
    done = subprocess.run(command, cwd=at, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, f"{command[0]}: {(done.stdout + done.stderr)[-3000:]}"
    return done.stdout
