"""The driver's libraries as a tree of their own, which sandboxes with a graphics processor mount read-only.

`<state>/gpu-libraries/<name>` holds `lib` and `bin`. Its name is a hash of its files, so that it never changes under a
sandbox: an updated driver gets another tree. The files are hard links where possible, else copies.
"""

import hashlib
import os
import shutil
import struct
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

from warren.sandboxes.host.gpus import Found

_PT_LOAD, _PT_DYNAMIC, _DT_STRTAB, _DT_SONAME = 1, 2, 5, 14
_LONGEST_NAME: Final = 256


def library_tree(found: Found, folder: Path) -> tuple[Path, bool]:
    """Returns the tree, and whether it was made now. May take a second, so call it in a thread. Raises OSError."""
    tree = folder / _name_of(found)
    if tree.is_dir():
        return tree, False
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    making = Path(tempfile.mkdtemp(dir=folder, prefix=".making-"))
    try:
        making.chmod(0o755)
        for name in ("lib", "bin"):
            (making / name).mkdir()
            (making / name).chmod(0o755)
        for file in found.files:
            _put(file, making)
        for link, target in found.links:
            _link(making / "lib", link, target)
        with suppress(OSError):
            making.rename(tree)  # fails if another process was first
    finally:
        shutil.rmtree(making, ignore_errors=True)
    if not tree.is_dir():
        raise FileNotFoundError(2, "the tree of GPU libraries was not made", str(tree))
    return tree, True


def remove_others(folder: Path, kept: Path) -> None:
    """Removes the trees of earlier drivers. No sandbox may have one of them mounted."""
    with suppress(FileNotFoundError):
        for each in folder.iterdir():
            if each != kept and not each.name.startswith(".making-"):
                shutil.rmtree(each, ignore_errors=True)


def _name_of(found: Found) -> str:
    parts = [f"{name}>{to}" for name, to in found.links]
    for file in found.files:
        stat = file.stat()
        parts.append(f"{file.name} {stat.st_size} {stat.st_mtime_ns} {stat.st_dev} {stat.st_ino}")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _put(file: Path, tree: Path) -> None:
    is_library = ".so" in file.name
    place = tree / ("lib" if is_library else "bin") / file.name
    try:
        os.link(file, place)
        if place.stat().st_mode & 0o444 != 0o444:
            place.unlink()
            raise PermissionError
    except OSError:
        shutil.copyfile(file, place)
        place.chmod(0o755)
    if is_library and (soname := read_soname(file)):
        _link(tree / "lib", soname, file.name)
        if soname.startswith("libcuda.so"):
            _link(tree / "lib", "libcuda.so", file.name)


def _link(folder: Path, name: str, target: str) -> None:
    if "/" not in name and "/" not in target and name != target:
        with suppress(FileExistsError):
            os.symlink(target, folder / name)


def read_soname(file: Path) -> str:
    """Returns the name by which programs ask for a library, from its ELF header; "" if it has none."""
    try:
        with file.open("rb") as elf:
            header = elf.read(64)
            if header[:6] != b"\x7fELF\x02\x01":
                return ""
            (start,) = struct.unpack_from("<Q", header, 32)
            size, count = struct.unpack_from("<HH", header, 54)
            elf.seek(start)
            entries = [struct.unpack_from("<IIQQQQQQ", elf.read(size)) for _ in range(count)]
            loads = [entry for entry in entries if entry[0] == _PT_LOAD]
            dynamic = next(entry for entry in entries if entry[0] == _PT_DYNAMIC)
            elf.seek(dynamic[2])
            tags = dict(struct.iter_unpack("<QQ", elf.read(dynamic[5] // 16 * 16)))
            strings = next(tags[_DT_STRTAB] - e[3] + e[2] for e in loads if e[3] <= tags[_DT_STRTAB] < e[3] + e[5])
            elf.seek(strings + tags[_DT_SONAME])
            return elf.read(_LONGEST_NAME).partition(b"\0")[0].decode()
    except (OSError, struct.error, StopIteration, KeyError, UnicodeDecodeError):
        return ""
