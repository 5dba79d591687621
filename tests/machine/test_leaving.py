"""`warren cluster leave`, which a hook runs before a worker is stopped: against real processes, and its waiting."""

import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
import warm_parent
from contract.roster_contract import a_report
from deploy_files import pod
from machine.cluster_world import ADMIN, Nodes, new_nodes, wait_until
from machine.remote_cli import RemoteCli
from server_process import ServerProcess
from unit.fake_roster import FakeRoster

from warren.cluster.leaving import Remainder, leave
from warren.model.errors import Unavailable
from warren.model.volume import Volume
from warren.sessions.volumes.records import VolumeRecords
from warren.stores.memory import MemoryStore
from warren.testing.manual_clock import ManualClock

FAILED = 125
HOOK = tuple(pod("DaemonSet")["containers"][0]["lifecycle"]["preStop"]["exec"]["command"])


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with new_nodes() as nodes:
        nodes.worker("leaver", "--labels", "zone=a", WORKER_ID="leaver")
        nodes.coordinator()
        for process in nodes.all:
            process.start(wait=False)
        for process in nodes.all:
            process.wait_until_ready()
        yield nodes


@pytest.fixture
def cli(nodes: Nodes) -> RemoteCli:
    found = RemoteCli(nodes.all[1].url, WARREN_API_KEY=ADMIN)
    wait_until(lambda: shown(found).get("state") == "ready", "a worker")
    return found


def shown(cli: RemoteCli) -> dict[str, Any]:
    return next(iter(cli.document("cluster", "status")["workers"]), {})


def create(cli: RemoteCli, thread: str) -> None:
    cli.say("create", "--thread", thread)
    wait_until(lambda: shown(cli)["sessions"] == 1, "the worker to report it")


def leaving(worker: ServerProcess, *words: str) -> "subprocess.Popen[str]":
    """Runs a hook as Kubernetes does: beside the worker, with its variables."""
    assert words[:3] == ("warren", "cluster", "leave")
    environ = {**worker.environ, "WARREN_STATE_DIR": str(worker.state_dir)}
    argv = RemoteCli.argv(*words[1:])
    return warm_parent.Popen(argv, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_leaving_worker_gets_no_sessions_until_it_is_started_again(nodes: Nodes, cli: RemoteCli) -> None:
    worker = nodes.all[0]
    create(cli, "one")
    with leaving(worker, *HOOK[:3], "--for-good", "--wait", "100") as hook:
        wait_until(lambda: shown(cli)["state"] == "draining", "the coordinator to see it")
        assert cli.say("exec", "--thread", "one", "--", "echo", "goes on") == "goes on\n"
        assert hook.poll() is None
        cli.say("kill", "--thread", "one")
        said, complaints = hook.communicate(timeout=60)
        assert (hook.returncode, complaints) == (0, "")
    first, last = said.splitlines()
    assert first == "leaver gets no new sessions, and has 1 sessions and 0 volumes"
    assert last == "leaver gets no new sessions, and has 0 sessions and 0 volumes"
    assert worker.stop() == 0
    worker.start()
    wait_until(lambda: shown(cli)["state"] == "ready", "new sessions")


def test_a_hook_waits_no_longer_than_it_is_told_and_sessions_go_on(nodes: Nodes, cli: RemoteCli) -> None:
    create(cli, "two")
    for more, expected in ((), 0), (("--for-good",), FAILED):
        with leaving(nodes.all[0], *HOOK[:-1], "0", *more) as hook:
            said, _ = hook.communicate(timeout=60)
            assert (hook.returncode, "has 1 sessions" in said) == (expected, True)
    wait_until(lambda: shown(cli)["state"] == "draining", "the coordinator to see it")
    assert cli.say("exec", "--thread", "two", "--", "echo", "goes on") == "goes on\n"


@pytest.mark.anyio
async def test_a_worker_for_good_waits_for_its_volumes_and_no_worker_for_what_others_have() -> None:
    roster, volumes, told = FakeRoster(ManualClock()), VolumeRecords(MemoryStore().records), []
    for name, place in (("a", "w"), ("b", "w"), ("c", "other")):
        await volumes.add(Volume(f"vol_{name}", "acme", name, 16, 0.0, place=place))
    await roster.register(a_report(claimed=1, waiting=2), 0)
    for for_good, expected in ((True, Remainder(3, 2)), (False, Remainder(3))):
        left = await leave(roster, volumes, "w", wait_s=0, for_good=for_good, tell=told.append)
        assert left == told[-1] == expected
    assert await leave(roster, volumes, "unknown", wait_s=0, for_good=True, tell=told.append) == Remainder()
    roster.away = True
    with pytest.raises(Unavailable):
        await leave(roster, volumes, "w", wait_s=0, for_good=True, tell=told.append)
