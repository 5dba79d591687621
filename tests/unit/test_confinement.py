"""What a confined process cannot do any more. It cannot be undone, so it is tried in a process of its own."""

import json
import subprocess
import sys
from pathlib import Path

TRIES = """
import ctypes, json, os, sys, threading
libc = ctypes.CDLL(None, use_errno=True)
from pathlib import Path
from warren.app.confinement import confine

allowed, other = Path(sys.argv[1]), Path(sys.argv[2])
held = open(other / "opened-before", "w")
found = {"version": confine([allowed, Path("/dev/null"), Path("/nonexistent")])}

def attempt(name, act):
    try:
        act()
        found[name] = "done"
    except OSError as exc:
        found[name] = type(exc).__name__

def call(name, *values):
    if getattr(libc, name)(*values) < 0:
        raise OSError(ctypes.get_errno(), name)

attempt("chroot", lambda: os.chroot("/"))
attempt("namespace", lambda: call("unshare", 0x10000000))
attempt("mount", lambda: call("mount", b"none", b"/", None, 32, None))
attempt("program_without_landlock", lambda: os.execv("/bin/true", ["true"]))
attempt("program", lambda: os.posix_spawn("/bin/true", ["true"], {}))
attempt("write_allowed", lambda: (allowed / "file").write_text("x"))
attempt("directory_allowed", lambda: (allowed / "sub").mkdir())
attempt("write_null", lambda: Path("/dev/null").write_text("x"))
attempt("write_other", lambda: (other / "file").write_text("x"))
attempt("truncate_other", lambda: os.truncate(other / "kept", 0))
attempt("remove_other", lambda: (other / "kept").unlink())
attempt("rename_out", lambda: (allowed / "file").rename(other / "moved"))
attempt("read_other", lambda: (other / "kept").read_text())
attempt("signal", lambda: os.kill(os.getppid(), 0))
attempt("opened_before", lambda: held.write("x"))
thread = threading.Thread(target=attempt, args=("write_in_thread", lambda: (other / "thread").write_text("x")))
thread.start()
thread.join()
found["no_new_privs"] = "NoNewPrivs:\\t1\\n" in Path("/proc/self/status").read_text()
status = dict(line.split(":\\t", 1) for line in Path("/proc/self/status").read_text().splitlines())
found["capabilities"] = sorted({int(status[name], 16) for name in ("CapEff", "CapPrm", "CapBnd", "CapInh", "CapAmb")})
found["filter"] = status["Seccomp"]
print(json.dumps(found))
"""


def test_a_confined_process_starts_nothing_and_writes_nowhere_else(tmp_path: Path) -> None:
    allowed, other = tmp_path / "allowed", tmp_path / "other"
    allowed.mkdir()
    other.mkdir()
    (other / "kept").write_text("kept")
    done = subprocess.run(
        [sys.executable, "-c", TRIES, str(allowed), str(other)],
        capture_output=True,
        text=True,
        timeout=60,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (set(found["capabilities"]) <= {0, 1 << 10}, found["filter"]) == (True, "2")
    refused = [
        "chroot",
        "namespace",
        "mount",
        "program_without_landlock",
        "program",
        "write_other",
        "remove_other",
        "write_in_thread",
        "rename_out",
    ]
    refused += ["truncate_other"] if found["version"] >= 3 else []
    refused += ["signal"] if found["version"] >= 6 else []
    assert {name: found[name] for name in refused} == dict.fromkeys(refused, "PermissionError")
    for name in ("write_allowed", "directory_allowed", "write_null", "read_other", "opened_before"):
        assert found[name] == "done", name
    assert found["no_new_privs"]
    assert (other / "kept").read_text() == "kept"
