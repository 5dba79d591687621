"""The walls leave ordinary programs alone: what people run in a sandbox works as it does elsewhere."""

from pathlib import Path

import pytest

import warren
from warren.interfaces.sandbox import Sandbox
from warren.model.operations import Command
from warren.model.spec import Limits, SandboxSpec
from warren.sandboxes.providers.oci import OciProvider

BIN = Path(warren.__file__).parent / "bin"
TRACE = """
import ctypes, os, signal
pid = os.fork()
if pid == 0:
    os._exit(0 if ctypes.CDLL(None).ptrace(0, 0, 0, 0) == 0 else 1)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
LINES = {
    "python": "python -c 'import ssl, sqlite3, ctypes, multiprocessing as m; print(m.Pool(2).map(abs, [-1, -2]))'",
    "threads": "python -c 'import threading; t = [threading.Thread() for _ in range(50)]; [x.start() for x in t]'",
    "sockets on loopback": 'python -c \'import socket as s; a = s.create_server(("127.0.0.1", 0)); '
    "s.create_connection(a.getsockname())'",
    "venv": "python -m venv --without-pip /tmp/v && /tmp/v/bin/python -c 'import sys; print(sys.prefix)'",
    "pip, from a folder": "mkdir -p p/thing && touch p/thing/__init__.py && "
    'printf \'[project]\\nname = "thing"\\nversion = "1"\\n\' > p/pyproject.toml && '
    "pip install --quiet --no-index --no-build-isolation --no-deps ./p && python -c 'import thing'",
    "git": "git init -q repo && cd repo && git config user.email a@b && git config user.name n && echo 1 > f && "
    "git add f && git commit -qm one && git log --oneline | grep one",
    "node": 'node -e \'const {execSync} = require("child_process"); console.log(String(execSync("echo hi")))\'',
    "node workers": 'node -e \'const w = require("worker_threads"); new w.Worker("1", {eval: true})\'',
    "curl": "curl -s file:///etc/hostname",
    "jq": "echo '{\"a\": 1}' | jq .a",
    "ripgrep": "echo needle > hay && rg needle",
    "tar and compression": "tar czf a.tgz /etc/hostname 2>/dev/null && tar tzf a.tgz && xz -k a.tgz",
    "fifo": "mkfifo f && (echo x > f &) && cat f",
    "shared memory": "python -c 'from multiprocessing import shared_memory as m; "
    "s = m.SharedMemory(create=True, size=9); s.close(); s.unlink()'",
    "ps and top": "ps aux | grep -q ps && top -b -n 1 | head -1",
    "/dev/stdout and /dev/stderr": "echo a > /dev/stdout && echo b > /dev/stderr",
    "process substitution": "diff <(echo a) <(echo a)",
    "terminal tools without one": "! tty",
    "renice downwards": "nice -n 5 true",
    "time and dates": "date && TZ=UTC date",
    "locks of databases": 'python -c \'import os, sqlite3; c = sqlite3.connect("d"); c.execute("create table t(x)"); '
    'c.commit(); os.fork() or sqlite3.connect("d").execute("insert into t values (1)").connection.commit()\'',
    "limits of cores": "ulimit -c 0 && ulimit -S -c unlimited && (ulimit -n 100 && test $(ulimit -n) = 100)",
    "advice about the cache": "dd if=/etc/passwd of=copy iflag=nocache oflag=nocache status=none && sync && sync copy",
    "terminals": "python -c 'import pty; exit(pty.spawn([\"true\"]))'",
    "figures of the machine": "free && uptime && nproc && python -c 'import os; os.getloadavg()'",
    "awk, sed, find": "find /etc -maxdepth 1 -name host* | sed s/o/0/ | awk '{print $1}'",
}

pytestmark = [pytest.mark.anyio, pytest.mark.extended]


async def test_what_people_run_works(provider: OciProvider) -> None:
    box = await provider.create(SandboxSpec(limits=Limits(cpus=2)))
    failed = {}
    for what, line in LINES.items():
        result = await box.exec(Command(shell=line, carry_state=False, timeout_s=60))
        if result.exit_code != 0:
            failed[what] = result.output
    assert failed == {}


async def test_a_compiler_works(provider: OciProvider) -> None:
    box = await provider.create(SandboxSpec(image="host", limits=Limits(cpus=2)))
    line = "echo 'int main(void) { return 42; }' > m.c && cc -o m m.c && ./m"
    assert (await box.exec(Command(shell=line))).exit_code == 42


@pytest.mark.parametrize(("allowed", "answer"), [(False, "1\n"), (True, "0\n")])
async def test_tracing_is_an_option(provider: OciProvider, allowed: bool, answer: str) -> None:
    box: Sandbox = await provider.create(SandboxSpec(ptrace=allowed))
    assert (await box.exec(Command(argv=("python3", "-c", TRACE)))).stdout == answer
