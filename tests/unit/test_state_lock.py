"""Who may use a state directory: one server at a time, and the next one as soon as the last one is gone."""

import fcntl
import os
import subprocess
import threading
from pathlib import Path

import pytest

from warren.app.service import LOCK, lock_state
from warren.model.errors import Unavailable


def test_the_lock_of_a_live_server_is_respected_and_names_it(tmp_path: Path) -> None:
    held = lock_state(tmp_path)
    with pytest.raises(Unavailable, match=rf"another server uses .* \(process {os.getpid()}\)"):
        lock_state(tmp_path)
    os.close(held)
    os.close(lock_state(tmp_path))


def test_a_lock_that_a_killed_server_left_to_a_child_for_a_moment_is_waited_for(tmp_path: Path) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    inherited = os.open(tmp_path / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    os.write(inherited, f"{gone.pid}\n".encode())
    fcntl.flock(inherited, fcntl.LOCK_EX)
    timer = threading.Timer(0.3, os.close, [inherited])
    timer.start()
    os.close(lock_state(tmp_path))
    timer.join()
    assert (tmp_path / LOCK).read_text() == f"{os.getpid()}\n"
