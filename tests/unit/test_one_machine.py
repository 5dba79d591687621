"""What the processes of a cluster on one machine share: a secret, and a state directory with one for each worker."""

import os
from pathlib import Path

import pytest

from warren.app.one_machine import make_secret, worker_directory
from warren.app.service import lock_state
from warren.model.errors import InvalidRequest


def test_processes_with_the_same_state_directory_have_the_same_secret(tmp_path: Path) -> None:
    state = tmp_path / "state"
    secret = make_secret(state, ["localhost", "127.0.0.1", "::1"])
    assert len(secret) == 64
    assert make_secret(state, []) == secret
    assert (state / "cluster-secret").stat().st_mode & 0o777 == 0o600


def test_a_name_of_this_machine_is_this_machine_and_any_other_host_is_named_in_the_refusal(tmp_path: Path) -> None:
    names = ["ip6-localhost", os.uname().nodename]  # what /etc/hosts has
    with pytest.raises(InvalidRequest, match=r"w1\.invalid is not this machine"):
        make_secret(tmp_path, ["w1.invalid"])
    with pytest.raises(InvalidRequest, match=r"192\.0\.2\.1 is not this machine"):
        make_secret(tmp_path, ["localhost", "192.0.2.1"])
    assert not (tmp_path / "cluster-secret").exists()
    hosts = Path("/etc/hosts").read_text().split()
    assert make_secret(tmp_path, [name for name in names if name in hosts])


def test_each_worker_keeps_its_directory_in_whatever_order_they_start(tmp_path: Path) -> None:
    assert worker_directory(tmp_path, "worker2") == tmp_path
    assert worker_directory(tmp_path, "worker1") == tmp_path / "workers" / "worker1"
    assert worker_directory(tmp_path, "worker2") == tmp_path
    assert worker_directory(tmp_path, "worker1") == tmp_path / "workers" / "worker1"
    assert (tmp_path / "workers" / "worker1" / "images").resolve() == tmp_path / "images"


def test_a_worker_beside_a_server_has_a_directory_of_its_own_also_when_the_server_has_gone(tmp_path: Path) -> None:
    lock = lock_state(tmp_path)
    own = worker_directory(tmp_path, "worker1")
    os.close(lock)
    assert own == worker_directory(tmp_path, "worker1") == tmp_path / "workers" / "worker1"
    assert worker_directory(tmp_path, "worker2") == tmp_path


@pytest.mark.parametrize("name", [".", "..", ".hidden"])
def test_no_name_of_a_worker_leads_out_of_the_directory(tmp_path: Path, name: str) -> None:
    assert worker_directory(tmp_path, "first") == tmp_path
    assert worker_directory(tmp_path, name).parent == tmp_path / "workers"
    assert worker_directory(tmp_path, name).resolve().parent == tmp_path / "workers"
