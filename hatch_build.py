"""Compiles agent and launcher when a wheel is built, and names in its tag the machines that they run on.

hatchling calls it, for pip as for `make dist`. WARREN_WHEEL_ARCH chooses another machine than this one: `x86_64`,
`aarch64`, or `none` for a wheel without them, which is enough for clients and coordinators; anywhere but on Linux that
is what is built. The compiler is zig if it is installed beside hatchling (`make dist` does that: zig compiles for both
machines), else the one that the Makefiles find.
"""

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PROGRAMS = {"agent": "warren-agent", "launcher": "warren-launch"}
# They are static, so they run with every libc.
TAGS = {arch: f"py3-none-manylinux_2_17_{arch}.musllinux_1_1_{arch}" for arch in ("x86_64", "aarch64")}


class ProgramsHook(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return  # `make build` makes those of a checkout
        arch = os.environ.get("WARREN_WHEEL_ARCH") or (platform.machine() if sys.platform == "linux" else "none")
        if arch == "none":
            return
        if arch not in TAGS:
            stop(
                f"Warren makes sandboxes on x86_64 and aarch64, not on {arch}; WARREN_WHEEL_ARCH=none builds a client."
            )
        build_data["pure_python"], build_data["tag"] = False, TAGS[arch]
        for program in compile_programs(Path(self.root), arch):
            build_data["force_include"][str(program)] = f"warren/bin/{program.name}"


def compile_programs(root: Path, arch: str) -> list[Path]:
    folder = root / "build" / "programs" / arch
    options = [f"BIN={folder}"]
    if importlib.util.find_spec("ziglang"):
        options.append(f"CC_STATIC={sys.executable} -m ziglang cc -target {arch}-linux-musl")
    elif arch != platform.machine():
        stop(f"Compiling for {arch} on {platform.machine()} needs zig: pip install ziglang, or run `make dist`.")
    elif not (shutil.which("make") and (shutil.which("musl-gcc") or shutil.which("cc"))):
        stop("Compiling Warren's agent needs make and a C compiler: apt-get install make gcc libc6-dev musl-tools")
    for source in PROGRAMS:
        argv = ["make", "--silent", "--always-make", "-C", str(root / source), *options]
        if subprocess.run(argv, stdout=sys.stderr).returncode:
            stop(f"The {source} could not be compiled, see above: apt-get install make gcc libc6-dev musl-tools")
    return [folder / name for name in PROGRAMS.values()]


def stop(sentence: str) -> None:
    raise SystemExit(sentence)
