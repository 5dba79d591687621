"""The tar of an image depends on nothing but its files, and what was written is read back."""

import io
import json
import os
import random
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from warren.images.store.store import ImageStore
from warren.images.store.versions import config_of
from warren.interfaces.images import ImageMetadata
from warren.kernel.tree_tar import digest_of, write_tar
from warren.model.image import ImageConfig


def make_tree(root: Path, names: list[str]) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(os.fsencode(name))
        os.chmod(root / name, 0o755)
        os.utime(root / name, (12345, 1_600_000_000.75))
    os.link(root / "bin/sh", root / "bin/ash")
    os.symlink("../bin/sh", root / "usr/link")
    os.mkfifo(root / "usr/pipe")
    (root / "empty").mkdir(mode=0o700)
    return root


@pytest.fixture
def store(tmp_path: Path) -> ImageStore:
    return ImageStore(tmp_path / "state")


def test_the_tar_is_the_same_wherever_and_however_the_files_were_made(tmp_path: Path) -> None:
    names = [f"usr/{number}" for number in range(50)] + ["bin/sh", "usr/\udcff-not-utf8", f"usr/{'long' * 60}"]
    here = make_tree(tmp_path / "here", names)
    random.Random(1).shuffle(names)
    there = make_tree(tmp_path / "there", names)
    out = io.BytesIO()
    assert write_tar(here, out) == digest_of(here) == digest_of(there)
    assert b"bin/ash" in out.getvalue()
    os.utime(there / "bin/sh", (0, 5))
    assert digest_of(there) != digest_of(here)


def test_an_exported_image_is_imported_to_the_same_content(store: ImageStore, tmp_path: Path) -> None:
    made = store.import_directory("mine", make_tree(tmp_path / "here", ["bin/sh", "usr/a"]))
    out = io.BytesIO()
    assert write_tar(store.rootfs("mine").path, out) == made.content
    out.seek(0)
    again = store.import_tar("again", out)
    assert again.content == made.content
    root = store.rootfs("again").path
    assert (root / "bin/sh").stat().st_ino == (root / "bin/ash").stat().st_ino


def test_what_is_known_of_a_version_is_readable_by_older_and_newer_versions(store: ImageStore, tmp_path: Path) -> None:
    made = store.import_directory("mine", make_tree(tmp_path / "here", ["bin/sh", "usr/a"]))
    files = store.rootfs("mine").path.parent
    old_fields = {"name", "source", "created", "files", "size_bytes", "host_usr", "format"}
    assert json.loads((files / "image.json").read_text()).keys() == old_fields

    later = json.loads((files / "config.json").read_text())
    (files / "config.json").write_text(json.dumps({**later, "of a later version": 1}))
    assert store.list() == [made]
    (files / "config.json").unlink()
    assert store.list() == [replace(made, content="")]


def test_a_config_survives_its_file() -> None:
    config = ImageConfig(
        {"A": "b"}, "/app", "app", ("a", "b"), ("c",), ("80/tcp",), {"l": "v"}, {"Test": ["NONE"]}, "d"
    )
    assert (
        config_of(json.loads(json.dumps(asdict(ImageMetadata("n", "s", 0, 0, 0, config=config))))["config"]) == config
    )
