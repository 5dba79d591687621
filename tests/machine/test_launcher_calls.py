"""The system calls of the processes that make a sandbox, as strace sees them, beside the lists of launcher/calls.h."""

import re
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import warren
from warren.images.store.store import ImageStore
from warren.model.spec import SandboxSpec
from warren.sandboxes.host.cgroups import Hierarchies
from warren.sandboxes.providers.oci import OciProvider

BIN = Path(warren.__file__).parent / "bin"
LAUNCHER = Path(__file__).parents[2] / "launcher"
SPECS = (SandboxSpec(image="host"), SandboxSpec(image="base", writable_root=True, sudo=True))

# Calls that only x86_64 has, by the one that aarch64 has in their place.
_NEWER: Final = {
    **{"access": "faccessat", "chmod": "fchmodat", "chown": "fchownat", "lstat": "newfstatat", "mkdir": "mkdirat"},
    **{"mknod": "mknodat", "open": "openat", "rmdir": "unlinkat", "stat": "newfstatat", "symlink": "symlinkat"},
    **{"unlink": "unlinkat", "dup2": "dup3", "fork": "clone", "pipe": "pipe2", "poll": "ppoll"},
}
_ONLY_X86: Final = {"arch_prctl"}
_LIST = re.compile(r"#define ([A-Z]+)_CALLS\b((?:.*\\\n)*.*)")
_CALL = re.compile(r"^(\w+)\(", re.M)
_FILTER: Final = "prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER"
_TRACED = """\
#!/bin/sh
exec strace --daemonize --follow-forks --output-separately --detach-on=execve --quiet=all --signal=none \\
    --output {traces}/trace {launcher} "$@"
"""


def listed() -> dict[str, set[str]]:
    found = _LIST.findall((LAUNCHER / "calls.h").read_text())
    return {name: {call.rstrip("_") for call in re.findall(r"CALL\((\w+)\)", calls)} for name, calls in found}


@pytest.fixture
def traced(tmp_path: Path) -> Path:
    """A directory of programs whose launcher is traced, with all its children, until they become another program."""
    (tmp_path / "traces").mkdir()
    (tmp_path / "warren-agent").symlink_to(BIN / "warren-agent")
    launcher = tmp_path / "warren-launch"
    launcher.write_text(_TRACED.format(traces=tmp_path / "traces", launcher=BIN / "warren-launch"))
    launcher.chmod(0o755)
    return tmp_path


async def make_sandboxes(provider: OciProvider, *, only_v2: bool) -> None:
    await provider.runtime_report()  # makes a sandbox too, and waits for its end
    if only_v2:
        mounts = {name: mount for name, mount in provider._hierarchies.mounts.items() if name != "devices"}
        provider._hierarchies = provider._launcher._hierarchies = Hierarchies(mounts)
    for spec in SPECS:
        box = await provider.create(spec)
        await provider.destroy(box.id)
    await provider.close()


def parts(trace: str) -> Iterator[tuple[str, str]]:
    """Yields what a process did, by the list that it belongs to."""
    if trace.startswith("execve("):
        before, mark, after = trace.partition(_FILTER)
        assert mark, before
        yield "STARTING", before
        yield "CONFINED", after.partition("\n")[2]
    elif "pivot_root(" in trace:
        yield "FIRST", trace
    elif "unshare(CLONE_NEWUSER" in trace:
        yield "OWNER", trace
    else:
        yield "ATTACHER", trace


@pytest.mark.anyio
@pytest.mark.extended
async def test_every_call_is_listed_and_the_launcher_may_make_no_others(
    state_dir: Path, image_store: ImageStore, traced: Path
) -> None:
    for only_v2 in (False, True):
        provider = OciProvider(state_dir, image_store, traced, "direct", keep_changes=True)
        await make_sandboxes(provider, only_v2=only_v2)
    seen: defaultdict[str, set[str]] = defaultdict(set)
    for file in (traced / "traces").iterdir():
        trace = file.read_text()
        first = trace.partition("\n")[0]
        if first.startswith("execve(") and ('"direct"' not in first or '"--try"' in first):
            continue  # it was asked for something else than a sandbox
        for name, part in parts(trace):
            seen[name] |= {_NEWER.get(call, call) for call in _CALL.findall(part)} - _ONLY_X86
    lists = listed()
    unlisted = {(name, call) for name, calls in seen.items() for call in calls - lists[name] - lists["RARE"]}
    assert (unlisted, lists["CONFINED"] - seen["CONFINED"]) == (set(), set())


_PROGRAM = r"""
#include "launch.h"
static char text[1024];
static void note(const char *call, long result) {
    size_t at = strlen(text);
    const char *outcome = result >= 0 ? "made" : errno == ENOSYS ? "refused" : "failed";
    snprintf(text + at, sizeof text - at, "%s %s\n", call, outcome);
}
int main(void) {
    confine();
    note("read", read(0, (char[1]){0}, 1));
    note("fork", fork());
    note("execve", execve("/bin/true", (char *[]){"true", NULL}, NULL));
    note("socket", socket(AF_INET, SOCK_STREAM, 0));
    note("bpf", syscall(SYS_bpf, 0, NULL, 0));
    note("unshare", unshare(CLONE_NEWNS));
    note("setuid", setuid(0));
    return write(1, text, strlen(text)) < 0;
}
"""


def test_a_confined_process_starts_nothing_and_connects_to_nothing(tmp_path: Path) -> None:
    (tmp_path / "main.c").write_text(_PROGRAM)
    sources = [tmp_path / "main.c", LAUNCHER / "confine.c", LAUNCHER / "report.c"]
    subprocess.run(["cc", f"-I{LAUNCHER}", "-o", tmp_path / "main", *sources], check=True)
    done = subprocess.run([tmp_path / "main"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)
    outcomes = dict(line.split() for line in done.stdout.splitlines())
    refused = ("fork", "execve", "socket", "bpf", "unshare", "setuid")
    assert outcomes == {"read": "made", **dict.fromkeys(refused, "refused")}
