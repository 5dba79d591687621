"""What the SDK unpacks on the caller's machine stays in its directory, whatever a sandbox has packed."""

import io
import tarfile
from pathlib import Path

import pytest

from warren.model.errors import InvalidRequest
from warren.sdk.local_files import unpack


def archive(*members: tuple[str, str]) -> io.BytesIO:
    """Each member with the target of a link, a `/` for a directory, or nothing for a file."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name, target in members:
            info = tarfile.TarInfo(name)
            info.type = tarfile.REGTYPE if not target else tarfile.DIRTYPE if target == "/" else tarfile.SYMTYPE
            info.mode, info.linkname = 0o755, target.strip("/")
            tar.addfile(info)
    return file


def too_deep_to_follow() -> list[tuple[str, str]]:
    """Links through directories whose path is longer than the kernel takes; the last one leads out of them all."""
    members, path, steps = list[tuple[str, str]](), "", "abcdefghijklmnop"
    for step in steps:
        members += [(f"{path}{'d' * 247}", "/"), (f"{path}{step}", "d" * 247)]
        path += "d" * 247 + "/"
    deep = f"{'/'.join(steps)}/{'l' * 254}"
    return [*members, (deep, "../" * len(steps)), ("out", f"{deep}/../outside"), ("out/file", "")]


@pytest.mark.parametrize(
    "members",
    [
        too_deep_to_follow(),
        [("d", "/"), ("d/in", ".."), ("d/in/file", "")],
        [("d", "/"), ("d/x", "../../outside")],
        [("d", "/"), ("x", "d/../../outside")],
    ],
    ids=["through paths too long to follow", "beneath a link", "a link out", "a link out by a detour"],
)
def test_an_archive_that_might_lead_out_is_refused(tmp_path: Path, members: list[tuple[str, str]]) -> None:
    outside, target = tmp_path / "outside", tmp_path / "target"
    outside.mkdir()
    with pytest.raises(InvalidRequest, match="cannot be unpacked"):
        unpack(archive(*members), target)
    assert list(outside.iterdir()) == []


def test_links_that_stay_inside_are_kept(tmp_path: Path) -> None:
    unpack(archive(("d", "/"), ("d/file", ""), ("d/up", "../d/file"), ("root", "d")), tmp_path / "target")
    assert (tmp_path / "target/d/up").resolve() == (tmp_path / "target/d/file").resolve()
    assert (tmp_path / "target/root/file").exists()
