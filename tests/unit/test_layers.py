"""Layers of builds, collected from directories that hostile code has filled, and flattened as the kernel would."""

import os
import stat
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from warren.images.trees.layers import LayerCaps, LayerSize, collect, flatten
from warren.model.errors import InvalidRequest

BASE = 0x78000000
OPAQUE = "trusted.overlay.opaque"


def collected(upper: Path, target: Path, **options: object) -> LayerSize:
    fd = os.open(upper, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return collect(fd, BASE, target, **options)  # type: ignore[arg-type]
    finally:
        os.close(fd)


def whiteout(path: Path) -> None:
    os.mknod(path, stat.S_IFCHR, os.makedev(0, 0))


def fill(root: Path, files: Mapping[str, str | None]) -> Path:
    """Text makes a file, None a directory, `-> x` a link, `gone` a whiteout."""
    root.mkdir(exist_ok=True)
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if text is None:
            path.mkdir(exist_ok=True)
        elif text == "gone":
            whiteout(path)
        elif text.startswith("-> "):
            path.symlink_to(text[3:])
        else:
            path.write_text(text)
    return root


def shown(root: Path) -> dict[str, object]:
    found: dict[str, object] = {}
    for base, directories, names in os.walk(root):
        for name in (*directories, *names):
            path = Path(base, name)
            about = path.lstat()
            what: object = about.st_mode
            if stat.S_ISREG(about.st_mode):
                what = about.st_mode, path.read_text()
            elif stat.S_ISLNK(about.st_mode):
                what = os.readlink(path)
            found[str(path.relative_to(root))] = what, about.st_uid, about.st_gid
    return found


class TestCollect:
    def test_ids_modes_and_links_are_as_the_sandbox_saw_them(self, tmp_path: Path) -> None:
        upper = fill(tmp_path / "upper", {"a/b/file": "text", "a/link": "-> /etc/passwd"})
        for path in (upper, *upper.rglob("*")):
            os.chown(path, BASE + 33, BASE + 7, follow_symlinks=False)
        (upper / "a/b").chmod(0o1770)
        os.link(upper / "a/b/file", upper / "again")
        size = collected(upper, tmp_path / "layer")
        assert shown(tmp_path / "layer") == {
            "a": (0o40755, 33, 7),
            "a/b": (0o41770, 33, 7),
            "a/b/file": ((0o100644, "text"), 33, 7),
            "a/link": ("/etc/passwd", 33, 7),
            "again": ((0o100644, "text"), 33, 7),
        }
        assert (tmp_path / "layer/again").stat().st_ino == (tmp_path / "layer/a/b/file").stat().st_ino
        assert size.files == 5

    def test_only_what_an_image_may_hold_is_taken(self, tmp_path: Path) -> None:
        upper = fill(tmp_path / "upper", {"program": "x", "gone": "gone", ".warren/agent": "x", "dev/null": "x"})
        (upper / "program").chmod(0o6755)
        os.setxattr(upper / "program", "user.mark", b"1")
        os.setxattr(upper / "program", "trusted.mark", b"1")
        os.mkfifo(upper / "pipe")
        os.mknod(upper / "disk", stat.S_IFBLK | 0o666, os.makedev(8, 0))
        os.mknod(upper / "memory", stat.S_IFCHR | 0o666, os.makedev(1, 1))
        (upper / "closed").mkdir()
        os.setxattr(upper / "closed", OPAQUE, b"y")
        name = b"\xff\n-rf"
        Path(os.fsdecode(os.fsencode(upper) + b"/" + name)).write_text("odd")
        collected(upper, tmp_path / "layer")
        found = shown(tmp_path / "layer")
        assert set(found) == {"program", "gone", "closed", os.fsdecode(name)}
        assert found["program"] == ((0o100755, "x"), 0, 0)
        assert os.listxattr(tmp_path / "layer/program") == []
        assert os.getxattr(tmp_path / "layer/closed", OPAQUE) == b"y"
        assert (tmp_path / "layer/gone").lstat().st_rdev == 0

    def test_a_sparse_file_stays_sparse(self, tmp_path: Path) -> None:
        upper = fill(tmp_path / "upper", {})
        with (upper / "sparse").open("wb") as file:
            file.seek(1 << 40)
            file.write(b"end")
        size = collected(upper, tmp_path / "layer")
        assert size.bytes < 1 << 20
        made = (tmp_path / "layer/sparse").stat()
        assert (made.st_size, made.st_blocks < 100) == ((1 << 40) + 3, True)

    def test_there_is_a_limit_to_files_bytes_and_depth(self, tmp_path: Path) -> None:
        upper = fill(tmp_path / "upper", {f"{number}": "x" * 5000 for number in range(20)})
        with pytest.raises(InvalidRequest, match="more than 10 files"):
            collected(upper, tmp_path / "one", caps=LayerCaps(files=10))
        with pytest.raises(InvalidRequest, match="more than 20000 bytes"):
            collected(upper, tmp_path / "two", caps=LayerCaps(bytes=20000))
        fill(upper, {"/".join("d" * 30): None})
        with pytest.raises(InvalidRequest, match="more than 20 deep"):
            collected(upper, tmp_path / "three", caps=LayerCaps(depth=20))

    def test_an_owner_is_given_to_what_is_new_alone(self, tmp_path: Path) -> None:
        """A directory that was there before is in the layer as well, because something in it has changed."""
        upper = fill(tmp_path / "upper", {"old/file": "x", "old/new/inner": "x", "other/opaque/inner": "x"})
        os.setxattr(upper / "other/opaque", OPAQUE, b"y")
        top = fill(tmp_path / "top", {"other/opaque/before": "x", "old/new": "a file"})
        bottom = fill(tmp_path / "bottom", {"old/before": "x", "old/new/hidden": "x"})
        collected(upper, tmp_path / "layer", owner=(5, 6), below=(top, bottom))
        owners = {name: value[1:] for name, value in shown(tmp_path / "layer").items()}  # type: ignore[index]
        made = ("old/file", "old/new", "old/new/inner", "other/opaque", "other/opaque/inner")
        assert owners == {**dict.fromkeys(("old", "other"), (0, 0)), **dict.fromkeys(made, (5, 6))}

    def test_a_layer_that_only_its_mount_could_resolve_is_refused(self, tmp_path: Path) -> None:
        upper = fill(tmp_path / "upper", {"moved": None})
        os.setxattr(upper / "moved", "trusted.overlay.redirect", b"/from")
        with pytest.raises(Exception, match="refers to files below"):
            collected(upper, tmp_path / "layer")


class TestFlatten:
    def test_it_is_what_the_kernel_shows_of_the_same_layers(self, tmp_path: Path) -> None:
        base = fill(
            tmp_path / "base",
            {"etc/a": "0", "etc/b": "0", "keep/x/y": "0", "was-dir/inner": "0", "was-file": "0", "lib": "-> usr/lib"}
            | {"opaque/old": "0", "deep/1/2/3": "0"},
        )
        one = fill(
            tmp_path / "one",
            {"etc/a": "gone", "etc/c": "1", "was-dir": "now a file", "opaque/new": "1", "keep/x/z": "1"},
        )
        os.setxattr(one / "opaque", OPAQUE, b"y")
        fill(one, {"was-file/now": "a directory", "deep/1": "gone"})
        two = fill(tmp_path / "two", {"etc/a": "2", "was-dir/again": "2", "opaque/newer": "2", "deep/1/2/4": "2"})
        os.setxattr(two / "deep/1", OPAQUE, b"y")
        (two / "etc").chmod(0o711)
        os.chown(two / "opaque", 4, 5)
        flatten(base, [one, two], tmp_path / "made")
        (tmp_path / "merged").mkdir()
        script = (
            f"mount -t overlay none -o lowerdir={two}:{one}:{base} {tmp_path}/merged && cp -a {tmp_path}/merged/. $1"
        )
        subprocess.run(["unshare", "--mount", "sh", "-ec", script, "-", f"{tmp_path}/copied"], check=True)
        assert shown(tmp_path / "made") == shown(tmp_path / "copied")
        assert shown(tmp_path / "made")["etc/a"] == ((0o100644, "2"), 0, 0)

    def test_files_are_shared_and_directories_are_not(self, tmp_path: Path) -> None:
        base = fill(tmp_path / "base", {"a/file": "0", "a/link": "-> file"})
        flatten(base, [], tmp_path / "made")
        assert (base / "a/file").stat().st_ino == (tmp_path / "made/a/file").stat().st_ino
        assert (base / "a").stat().st_ino != (tmp_path / "made/a").stat().st_ino

    def test_on_another_device_files_are_copied(self, tmp_path: Path) -> None:
        base = fill(tmp_path / "base", {"a/file": "0", "a/link": "-> file"})
        target = Path("/dev/shm") / tmp_path.parent.parent.name / "made"
        target.parent.mkdir()
        try:
            flatten(base, [], target)
            assert shown(target) == shown(base)
        finally:
            subprocess.run(["rm", "-rf", str(target.parent)], check=True)
