"""The image `base`, as built on this machine."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from server_process import clean_environ
from this_run import new_state_dir

from warren.images.store.store import ImageStore

PROGRAMS = "bash ls grep rg ps python3 python pip git curl jq node find sed awk tar gzip xz bzip2 unzip zip make"


@pytest.mark.parametrize("program", PROGRAMS.split())
def test_the_programs_people_expect_are_there(program: str, image_store: ImageStore) -> None:
    assert (image_store.rootfs("base").path / "usr/bin" / program).is_symlink() or (
        image_store.rootfs("base").path / "usr/bin" / program
    ).is_file()


def test_nothing_of_this_machine_is_in_it(image_store: ImageStore) -> None:
    root = image_store.rootfs("base").path
    assert not (root / "etc/apt/sources.list").exists()
    assert (root / "etc/resolv.conf").read_text() == ""
    assert (root / "etc/hostname").read_text() == "sandbox\n"
    assert (root / "etc/machine-id").read_text() == ""
    assert list((root / "var/lib/apt/lists").glob("*_Packages")) == []


def test_nothing_in_it_is_set_id_or_managed(image_store: ImageStore) -> None:
    root = image_store.rootfs("base").path
    assert not [path for path in root.rglob("*") if not path.is_symlink() and path.lstat().st_mode & 0o6000]
    assert not list(Path(root, "usr/lib").glob("python3*/EXTERNALLY-MANAGED"))


@pytest.mark.extended
def test_the_first_command_builds_it() -> None:
    state = new_state_dir()
    try:
        argv = [sys.executable, "-m", "warren.cli.main", "run", "--", "cat", "/etc/hostname"]
        environ = {**clean_environ(), "WARREN_STATE_DIR": str(state)}
        done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=600, check=True)
        assert done.stdout == "sandbox\n"
        assert "building the image base, which is not here yet" in done.stderr
        assert "downloading packages" in done.stderr
    finally:
        shutil.rmtree(state)
