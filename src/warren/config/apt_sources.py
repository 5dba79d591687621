"""Reads where apt of this machine finds the packages of its own release, for builds of images of the same release.

Sources of others are left out: images do not have their keys. So are credentials.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

_SUITES: Final = ("", "-updates", "-security", "-backports", "/updates")
_KEYRING: Final = re.compile(r"/usr/share/keyrings/(debian|ubuntu)-archive-keyring\.(gpg|pgp)")


def read_apt_sources(root: Path = Path("/")) -> dict[str, str]:
    """Returns lines for sources.list, by the code name of the release; empty where apt is not used."""
    release = _text(root / "etc/os-release")
    code_name = re.search(r'^VERSION_CODENAME="?([a-z0-9.-]+)', release, re.MULTILINE)
    if code_name is None:
        return {}
    folder = root / "etc/apt"
    files = [folder / "sources.list", *sorted((folder / "sources.list.d").glob("*.list"))]
    lines = [line for file in files for line in _one_line_sources(_text(file))]
    lines += [line for file in sorted((folder / "sources.list.d").glob("*.sources")) for line in _stanzas(_text(file))]
    suites = {f"{code_name[1]}{ending}" for ending in _SUITES}
    own = [line for line in lines if _suite_and_components(line)[0] in suites]
    own = [line for line in own if "main" in _suite_and_components(line)[1]]
    return {code_name[1]: "".join(f"{line}\n" for line in dict.fromkeys(own))} if own else {}


def _suite_and_components(line: str) -> tuple[str, list[str]]:
    _, suite, *components = re.sub(r"^deb (\[[^\]]*\] )?", "", line).split()
    return suite, components


def _one_line_sources(text: str) -> Iterator[str]:
    for match in re.finditer(r"^\s*deb\s+(?:\[([^\]]*)\]\s+)?(\S+)\s+(\S+)\s+([^#\n]+)", text, re.MULTILINE):
        options = dict(option.split("=", 1) for option in (match[1] or "").split() if "=" in option)
        yield from _line(options.get("trusted", ""), options.get("signed-by", ""), match[2], match[3], match[4].split())


def _stanzas(text: str) -> Iterator[str]:
    for stanza in re.split(r"\n\s*\n", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE)):
        fields = {
            name.lower(): value.strip() for name, value in re.findall(r"^([A-Za-z-]+):(.*)$", stanza, re.MULTILINE)
        }
        if "deb" not in fields.get("types", "").split() or fields.get("enabled", "yes").lower() == "no":
            continue
        for uri in fields.get("uris", "").split():
            for suite in fields.get("suites", "").split():
                components = fields.get("components", "").split()
                yield from _line(fields.get("trusted", ""), fields.get("signed-by", ""), uri, suite, components)


def _line(trusted: str, keyring: str, uri: str, suite: str, components: list[str]) -> Iterator[str]:
    url = urlsplit(uri)
    if url.scheme not in ("http", "https") or not url.hostname or not components:
        return
    options = [f"signed-by={keyring}"] if _KEYRING.fullmatch(keyring) else []
    options += ["trusted=yes"] if trusted.lower() == "yes" else []
    shown = f"[{' '.join(options)}] " if options else ""
    address = url._replace(netloc=url.netloc.rpartition("@")[2]).geturl()
    yield f"deb {shown}{address} {suite} {' '.join(components)}"


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
