"""What the process of the network could still do if an attacker had it: nothing but talk to public addresses."""

import json
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from warren.sandboxes.host.system_calls import numbers
from warren.sandboxes.network import call_filter

_PROGRAM = """
import ctypes, json, os, socket, sys, threading, time
from warren.sandboxes.egress import confinement

program, calls, secret = bytes.fromhex(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3]
import encodings.idna
sys.stdout.flush()
confinement.give_up_rights()
most = confinement.limit_resources()
confinement.filter_calls(program)
libc = ctypes.CDLL(None, use_errno=True)

def tried(work):
    try:
        return "done" if work() is None else "got"
    except OSError as exc:
        return exc.strerror

def call(number):
    ctypes.set_errno(0)
    return "got" if libc.syscall(number, 0, 0, 0, 0, 0, 0) >= 0 else os.strerror(ctypes.get_errno())

def threaded():
    thread = threading.Thread(target=time.sleep, args=(0,))
    thread.start()
    thread.join()

found = {
    "uid": [os.getuid(), os.geteuid(), os.getgid(), os.getegid()],
    "most": most,
    "fork": tried(os.fork),
    "exec": tried(lambda: os.execv("/bin/true", ["true"])),
    "unix": tried(lambda: socket.socket(socket.AF_UNIX)),
    "packet": tried(lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW)),
    "raw": tried(lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)),
    "tcp": tried(lambda: socket.socket(socket.AF_INET)),
    "name": tried(lambda: socket.getaddrinfo(b"localhost", 80)),
    "secret": tried(lambda: open(secret, "rb")),
    "write": tried(lambda: os.open("/tmp/egress-was-here", os.O_WRONLY | os.O_CREAT)),
    "root": tried(lambda: os.setuid(0)),
    "kill": tried(lambda: os.kill(os.getppid(), 0)),
    "thread": tried(threaded),
    "calls": {name: call(number) for name, number in calls.items()},
}
print(json.dumps(found), flush=True)
os._exit(0)
"""
_FORBIDDEN = (
    *("ptrace", "bpf", "setns", "unshare", "mount", "umount2", "pivot_root", "chroot", "init_module", "kexec_load"),
    *("perf_event_open", "process_vm_readv", "process_vm_writev", "pidfd_open", "pidfd_getfd", "io_uring_setup"),
    *("userfaultfd", "keyctl", "add_key", "memfd_create", "execveat", "open_by_handle_at", "name_to_handle_at"),
    *("unlinkat", "mkdirat", "symlinkat", "linkat", "renameat2", "fchmodat", "fchownat", "capset", "setuid", "prctl"),
    *("personality", "listen", "sendfile", "openat2", "kill", "tkill", "tgkill", "seccomp", "quotactl", "reboot"),
)


def test_a_process_that_was_taken_over_can_start_write_and_see_nothing(tmp_path: Path) -> None:
    known = numbers(platform.machine())
    calls = {name: known[name] for name in _FORBIDDEN if name in known}
    secret = tmp_path / "secrets.key"
    secret.write_text("key")
    secret.chmod(0o600)
    argv = [sys.executable, "-c", _PROGRAM, call_filter.compiled().hex(), json.dumps(calls), str(secret)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    refused = "Operation not permitted"
    assert 0 not in found["uid"]
    assert found["most"] >= 16
    for name in ("fork", "exec", "unix", "packet", "raw", "root", "kill", "write"):
        assert found[name] == refused, name
    assert found["secret"] == "Permission denied"
    assert (found["tcp"], found["name"], found["thread"]) == ("got", "got", "done")
    assert found["calls"] == dict.fromkeys(calls, refused)


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_filter_can_be_compiled_for_every_machine(machine: str) -> None:
    program = call_filter.compiled(machine)
    assert len(program) % 8 == 0
    assert len(program) // 8 < 4096
