"""Images in files: OCI layouts and `docker save` are imported; what was exported is imported to the same content."""

import contextlib
import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from registry_server import HERE, Image, descriptor, digest_of, tar_of

from warren.images.store.store import ImageStore, silent
from warren.images.transfer.oci_export import export_image, new_file
from warren.model.errors import InvalidRequest
from warren.model.image import ImageConfig

SAID = {"Env": ["A=b"], "WorkingDir": "/app", "User": "5:7", "Cmd": ["sh"], "ExposedPorts": {"80/tcp": {}}}
CONFIG = ImageConfig({"A": "b"}, "/app", "5:7", (), ("sh",), ("80/tcp",))
LAYERS = (tar_of({"bin/sh": b"#!", "old": b"1"}), tar_of({".wh.old": b"", "new": b"2"}))


@pytest.fixture
def store(tmp_path: Path) -> ImageStore:
    return ImageStore(tmp_path / "state")


def layout_of(folder: Path, *images: Image) -> Path:
    (folder / "blobs/sha256").mkdir(parents=True)
    for image in images:
        for blob in (*image.blobs, image.manifest):
            (folder / "blobs" / digest_of(blob).replace(":", "/")).write_bytes(blob)
    entries = [descriptor(image.manifest, image.type) for image in images]
    (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": entries}))
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return folder


def saved(image: Image, **changes: Any) -> io.BytesIO:
    """What `docker save` writes; the second layer is a link, as it does for layers it has written already."""
    manifest = [{"Config": "config.json", "RepoTags": ["x:1"], "Layers": ["a/layer.tar", "b/layer.tar"], **changes}]
    files: dict[str, bytes | str | None] = {"manifest.json": json.dumps(manifest).encode(), "config.json": image.config}
    files |= {"a/layer.tar": image.layers[0], "c/layer.tar": image.layers[1], "b/layer.tar": "../c/layer.tar"}
    return io.BytesIO(tar_of(files))


def check(store: ImageStore, name: str) -> None:
    root, config = store.rootfs(name).path, store.rootfs(name).config
    assert (root / "new").read_text() == "2"
    assert not (root / "old").exists()
    assert (
        ImageConfig(config.env, config.workdir, config.user, config.entrypoint, config.cmd, config.exposed_ports)
        == CONFIG
    )
    assert (store.rootfs(name).uid, (root / "app").stat().st_uid) == (5, 5)
    assert "5:x:5:7::/workspace:/bin/sh" in (root / "etc/passwd").read_text().splitlines()


def test_a_layout_is_imported_from_a_directory_and_from_a_tar(store: ImageStore, tmp_path: Path) -> None:
    image = Image(*LAYERS, config=SAID)
    folder = layout_of(tmp_path / "layout", image)
    made = store.import_directory("directory", folder)
    check(store, "directory")
    assert made.config.digest == digest_of(image.manifest)
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        tar.add(folder, ".")
    out.seek(0)
    assert store.import_tar("tar", out).content == made.content
    check(store, "tar")
    assert os.listdir(tmp_path / "state/images/.versions") != []


def test_what_docker_saves_is_imported(store: ImageStore) -> None:
    image = Image(*LAYERS, config=SAID, packed=bytes)
    store.import_tar("saved", saved(image))
    check(store, "saved")


def test_a_layout_with_several_images_needs_one_for_this_machine(store: ImageStore, tmp_path: Path) -> None:
    folder = layout_of(tmp_path / "layout", Image(*LAYERS), Image(LAYERS[0]))
    with pytest.raises(InvalidRequest, match="holds 2 images"):
        store.import_directory("several", folder)
    index = json.loads((folder / "index.json").read_text())
    index["manifests"][0]["platform"] = {"os": "linux", "architecture": "vax"}
    (folder / "index.json").write_text(json.dumps(index))
    assert store.import_directory("one", folder).files
    index["manifests"][1]["platform"] = HERE
    index["manifests"][0]["platform"] = HERE
    (folder / "index.json").write_text(json.dumps(index))
    with pytest.raises(InvalidRequest, match="holds 2 images"):
        store.import_directory("several", folder)


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        ({"Layers": ["../../etc/passwd", "a/layer.tar"]}, "no file"),
        ({"Layers": ["/etc/passwd", "a/layer.tar"]}, "no file"),
        ({"Layers": ["a", "a"]}, "is no file"),
        ({"Layers": ["a/layer.tar"]}, "another number of layers"),
        ({"Layers": ["b/layer.tar", "a/layer.tar"]}, "unpacks to"),
        ({"Config": "none.json"}, "no file 'none.json'"),
        ({"Config": "a/layer.tar"}, "not JSON"),
        ({"Layers": ["a/layer.tar"] * 600}, "at most 512"),
    ],
)
def test_a_damaged_archive_is_refused(store: ImageStore, damage: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InvalidRequest, match=complaint):
        store.import_tar("saved", saved(Image(*LAYERS, packed=bytes), **damage))
    assert store.list() == []


def test_a_damaged_layout_is_refused(store: ImageStore, tmp_path: Path) -> None:
    image = Image(*LAYERS)
    for number, blob in enumerate((*image.blobs, image.manifest)):
        folder = layout_of(tmp_path / f"layout-{number}", image)
        path = folder / "blobs" / digest_of(blob).replace(":", "/")
        path.write_bytes(blob[:-1] + b"\n")
        with pytest.raises(InvalidRequest, match="damaged"):
            store.import_directory("x", folder)
        path.unlink()
        os.symlink("/etc/hostname", path)
        with pytest.raises(InvalidRequest, match="no file"):
            store.import_directory("x", folder)


@pytest.mark.parametrize("difference", [-1, 1])
def test_a_layout_whose_descriptors_give_false_sizes_is_refused(
    store: ImageStore, tmp_path: Path, difference: int
) -> None:
    for number, part in enumerate(("config", "layer", "manifest")):
        image = Image(*LAYERS)
        if part != "manifest":
            (image.values["config"] if part == "config" else image.values["layers"][1])["size"] += difference
        folder = layout_of(tmp_path / f"layout-{number}", image)
        if part == "manifest":
            index = json.loads((folder / "index.json").read_text())
            index["manifests"][0]["size"] += difference
            (folder / "index.json").write_text(json.dumps(index))
        with pytest.raises(InvalidRequest, match=r"has \d+ bytes, and not \d+"):
            store.import_directory("x", folder)
    assert store.list() == []


@pytest.mark.parametrize("form", ["tar", "oci"])
def test_an_exported_image_is_the_same_again(store: ImageStore, tmp_path: Path, form: str) -> None:
    store.import_directory("mine", layout_of(tmp_path / "layout", Image(*LAYERS, config=SAID)))
    files = []
    for _ in range(2):
        out = io.BytesIO()
        with store.using("mine") as rootfs:
            export_image(rootfs, "mine", out, form, silent)
        files.append(out.getvalue())
    assert files[0] == files[1]
    again = store.import_tar("again", io.BytesIO(files[0]))
    (mine,) = [one for one in store.list() if one.name == "mine"]
    assert again.content == mine.content
    if form == "oci":
        check(store, "again")
    else:
        assert f"sha256:{hashlib.sha256(files[0]).hexdigest()}" == mine.content


def test_a_version_that_is_exported_stays(store: ImageStore, tmp_path: Path) -> None:
    store.import_directory("mine", layout_of(tmp_path / "layout", Image(*LAYERS)))
    with store.using("mine") as rootfs:
        store.import_directory("mine", tmp_path / "layout")
        store.prune()
        assert (rootfs.path / "bin/sh").exists()
    assert not rootfs.path.exists()


# -- bad luck


def warren(tmp_path: Path, *arguments: str) -> "subprocess.Popen[str]":
    environ = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": ":".join(sys.path),
        "WARREN_STATE_DIR": str(tmp_path / "state"),
    }
    argv = [sys.executable, "-m", "warren.cli.main", "image", *arguments]
    return subprocess.Popen(argv, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@contextlib.contextmanager
def small_disk(path: Path, size: str) -> Iterator[Path]:
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", str(path)], check=True)


def make_large(store: ImageStore, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "bin").mkdir(parents=True)
    (tree / "bin/sh").write_text("#!")
    (tree / "bin/sh").chmod(0o755)
    with (tree / "large").open("wb") as file:
        file.truncate(100_000_000)
    store.import_directory("large", tree)


def test_an_export_that_is_killed_leaves_nothing(store: ImageStore, tmp_path: Path) -> None:
    make_large(store, tmp_path)
    out = tmp_path / "out"
    out.mkdir()
    with warren(tmp_path, "export", "large", "-o", str(out / "image.tar")) as process:
        deadline = time.monotonic() + 30
        while not any("(deleted)" in each for each in links_of(process.pid)):
            assert process.poll() is None
            assert time.monotonic() < deadline
        process.send_signal(signal.SIGKILL)
        assert process.wait(20) == -signal.SIGKILL
    assert os.listdir(out) == []
    store.remove("large")
    assert os.listdir(tmp_path / "state/images") == [".versions"]


def links_of(pid: int) -> list[str]:
    with contextlib.suppress(OSError):
        return [os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir()]
    return []


def test_an_export_to_a_full_disk_is_one_sentence_and_leaves_nothing(store: ImageStore, tmp_path: Path) -> None:
    make_large(store, tmp_path)
    with small_disk(tmp_path / "out", "1m") as out:
        (out / "image.tar").write_text("before")
        with warren(tmp_path, "export", "large", "-o", str(out / "image.tar")) as process:
            text = process.communicate(timeout=60)[1]
        assert "the disk is full" in text
        assert "Traceback" not in text
        assert [path.read_text() for path in out.iterdir()] == ["before"]


def test_a_file_appears_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for text in (b"first", b"second"):
        with new_file(path) as file:
            file.write(text)
            assert not path.exists() or path.read_bytes() != text
        assert path.read_bytes() == text
    with pytest.raises(TypeError), new_file(path) as file:
        file.write("no bytes")  # type: ignore[arg-type]
    assert os.listdir(tmp_path) == ["file"]
    assert path.read_bytes() == b"second"
