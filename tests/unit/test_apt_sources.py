"""What apt in a build is told of this machine's package sources; and which releases this machine can make itself."""

from pathlib import Path

import pytest

from warren.config.apt_sources import read_apt_sources
from warren.images.trees.own_images import plain_suite


def machine(root: Path, files: dict[str, str], release: str = "ID=debian\nVERSION_CODENAME=bookworm\n") -> Path:
    for name, text in {"etc/os-release": release, **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_both_kinds_of_files_become_lines_without_credentials_and_without_others(tmp_path: Path) -> None:
    root = machine(
        tmp_path,
        {
            "etc/apt/sources.list": "# deb http://old bookworm main\n"
            "deb [arch=arm64 trusted=yes] https://me:secret@mirror.example/debian bookworm main contrib # note\n"
            "deb cdrom:[x]/ bookworm main\ndeb-src http://mirror.example/debian bookworm main\n"
            "deb https://packages.example/debian bookworm stable\n",
            "etc/apt/sources.list.d/debian.sources": "Types: deb\n# a comment\nURIs: http://one.example/debian\n"
            "Suites: bookworm bookworm-updates\nComponents: main\n"
            "Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n\n"
            "Types: deb\nEnabled: no\nURIs: http://off.example\nSuites: bookworm\nComponents: main\n",
            "etc/apt/sources.list.d/other.list": "deb http://apt.example/pgdg bookworm-pgdg main\n",
        },
    )
    signed = "[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] "
    assert read_apt_sources(root) == {
        "bookworm": "deb [trusted=yes] https://mirror.example/debian bookworm main contrib\n"
        f"deb {signed}http://one.example/debian bookworm main\n"
        f"deb {signed}http://one.example/debian bookworm-updates main\n"
    }


def test_a_machine_without_apt_has_none(tmp_path: Path) -> None:
    assert read_apt_sources(machine(tmp_path, {}, "ID=fedora\n")) == {}
    assert read_apt_sources(tmp_path / "nowhere") == {}


@pytest.mark.parametrize(
    ("name", "suite"),
    [
        ("debian:12", "bookworm"),
        ("debian:trixie-slim", "trixie"),
        ("debian", "bookworm"),
        ("debian:latest", "bookworm"),
        ("debian:../x", ""),
        ("ubuntu:24.04", ""),
        ("python:3.12", ""),
    ],
)
def test_releases_of_the_own_distribution_can_be_made(tmp_path: Path, name: str, suite: str) -> None:
    machine(tmp_path, {})
    assert plain_suite(name, tmp_path / "etc/os-release") == suite
