"""`warren doctor --attack`: everything is contained; and the probes do notice when it is not."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import warm_parent
from changed_launcher import change_launcher
from marks import first_of

import warren
from warren.images.store.store import ImageStore
from warren.interfaces.images import RootFs
from warren.model.errors import InvalidRequest
from warren.model.spec import Layer, SandboxSpec
from warren.sandboxes.agent.dialling import SOCKET_NAME
from warren.sandboxes.host.record import SandboxRecord
from warren.sandboxes.network.egress import Egress
from warren.sandboxes.providers.oci import OciProvider
from warren.sandboxes.providers.oci_launcher import OciLauncher
from warren.testing.fake_provider import FakeProvider
from warren_attack.probe import Finding, Group, Probe, ProbeResult, ProbeVerdict, contained
from warren_attack.sandbox_code import read_outcome
from warren_attack.warren.api.suite import PROBES as API_PROBES
from warren_attack.warren.arena import Arena
from warren_attack.warren.suite import PROBES, ROOT_PROBES, attack, choose

BIN = Path(warren.__file__).parent / "bin"
SPEC = SandboxSpec(image="base")

pytestmark = pytest.mark.anyio


@pytest.fixture
async def provider(state_dir: Path, image_store: ImageStore) -> AsyncIterator[OciProvider]:
    provider = OciProvider(state_dir, image_store, BIN, egress=Egress())
    yield provider
    left = await provider.list_ids()
    for sandbox_id in left:
        await provider.destroy(sandbox_id)
    await provider.close()
    assert left == []


def open_holes(findings: list[Finding]) -> list[str]:
    return [f"{finding.probe.id}: {finding.outcome.evidence}" for finding in findings if finding.failed]


@pytest.mark.timeout(400)
@pytest.mark.extended
@pytest.mark.serial
async def test_everything_is_contained(provider: OciProvider, state_dir: Path) -> None:
    probes = [probe for probe in PROBES if probe.group not in (Group.FAIRNESS, Group.EGRESS)]
    findings = await attack(provider, SPEC, secret_paths=(state_dir, BIN), probes=probes)
    assert len(findings) == len(probes) >= 150
    assert open_holes(findings) == []


@pytest.mark.timeout(600)
@pytest.mark.extended
async def test_rules_of_a_network_hold_and_a_secret_stays_outside(provider: OciProvider, state_dir: Path) -> None:
    probes = [probe for probe in PROBES if probe.group is Group.EGRESS]
    findings = await attack(provider, SPEC, secret_paths=(state_dir, BIN), probes=probes)
    assert len(findings) == len(probes) >= 150
    assert open_holes(findings) == []
    assert {finding.outcome.verdict for finding in findings} == {ProbeVerdict.CONTAINED}


async def test_root_inside_is_contained(provider: OciProvider, state_dir: Path) -> None:
    """By what only root can try, with a root that can be written to and one that cannot."""
    probes = [probe for probe in ROOT_PROBES if probe.id.removeprefix("root-") not in {other.id for other in PROBES}]
    probes += choose(("root-capabilities", "root-stop-storm", "root-stop-file-jobs", "agent-uid"), sudo=True)
    for writable in (True, False):
        spec = replace(SPEC, sudo=True, writable_root=writable)
        findings = await attack(provider, spec, secret_paths=(state_dir, BIN), probes=probes)
        assert len(findings) == len(probes) >= 14
        assert open_holes(findings) == []


@pytest.mark.timeout(900)
@pytest.mark.extended
@pytest.mark.serial
async def test_everything_is_contained_as_root_too(provider: OciProvider, state_dir: Path) -> None:
    spec = replace(SPEC, sudo=True, writable_root=True)
    findings = await attack(provider, spec, secret_paths=(state_dir, BIN), probes=ROOT_PROBES)
    assert len(findings) == len(ROOT_PROBES) >= 120
    # Memory full of what sockets hold may cost the sandbox its own agent: docs/root.md says so.
    assert [hole for hole in open_holes(findings) if not hole.startswith("root-memory-sockets: ")] == []


@pytest.mark.timeout(400)
@pytest.mark.extended
@pytest.mark.serial
async def test_what_a_neighbour_keeps_is_measured(provider: OciProvider, state_dir: Path) -> None:
    """How fast a machine is that also runs tests proves nothing: what counts here is that there are figures."""
    findings = await attack(provider, SPEC, secret_paths=(state_dir, BIN), probes=choose((Group.FAIRNESS,)))
    without = [finding for finding in findings if not re.search(r"[\d.]+ (ms|MiB|MB/s)", finding.outcome.evidence)]
    assert without == []
    for line in open_holes(findings):
        print(line)


async def test_the_host_image_leaks_nothing_of_the_host(provider: OciProvider, state_dir: Path) -> None:
    probes = choose((Group.ESCAPE, Group.LEAKS))
    findings = await attack(provider, SandboxSpec(image="host"), secret_paths=(state_dir, BIN), probes=probes)
    assert open_holes(findings) == []


@pytest.mark.parametrize("runtime", first_of(("direct", "crun", "runc")))
async def test_no_socket_of_an_agent_tells_of_the_hosts_network(
    state_dir: Path, image_store: ImageStore, runtime: str
) -> None:
    """And one that was connected to from there, as it is here, does: the probe notices."""
    provider = OciProvider(state_dir, image_store, BIN, runtime)
    (probe,) = choose(("agent-interfaces",))

    async def called_from_the_host(arena: Arena) -> ProbeResult:
        path = provider.directory(arena.sandbox.id) / SOCKET_NAME
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
            while (found := await probe.attack(arena)).verdict is not ProbeVerdict.GOT_THROUGH:
                await asyncio.sleep(0.01)  # the agent has not accepted it yet
            return found

    spoilt = replace(probe, id="spoilt", attack=called_from_the_host)
    findings = await attack(provider, SPEC, probes=[probe, spoilt])
    await provider.close()
    assert findings[0].outcome.verdict is ProbeVerdict.CONTAINED, findings[0]
    # The agent has left the worker for the other caller, so the sandbox is lost, whatever the probe says.
    assert re.search(r"\b1 of the agent's \d sockets belong to the host's network", findings[1].outcome.evidence)


# -- the probes can fail

Weaken = Callable[[dict[str, Any]], object]


class WeakLauncher(OciLauncher):
    """Takes something out of the configuration that its runtime gets."""

    weaken: Weaken

    def _oci_config(self, record: SandboxRecord, sandbox_id: str, rootfs: RootFs) -> str:
        config = json.loads(super()._oci_config(record, sandbox_id, rootfs))
        self.weaken(config)
        return json.dumps(config)


class WeakProvider(OciProvider):
    """Makes sandboxes with something taken out of their configuration, and does not refuse them."""

    promised = frozenset[Layer]()


def without_seccomp(config: dict[str, Any]) -> None:
    del config["linux"]["seccomp"]


def without_network_namespace(config: dict[str, Any]) -> None:
    kinds = config["linux"]["namespaces"]
    config["linux"]["namespaces"] = [kind for kind in kinds if kind["type"] != "network"]
    sysctls = config["linux"]["sysctl"]
    config["linux"]["sysctl"] = {name: value for name, value in sysctls.items() if not name.startswith("net.")}


def without_limits(config: dict[str, Any]) -> None:
    del config["linux"]["resources"]["cpu"]


def without_masks(config: dict[str, Any]) -> None:
    config["linux"]["maskedPaths"] = []


def without_one_mask(config: dict[str, Any]) -> None:
    """Of a file that says little: what counts is that nobody has named it."""
    config["linux"]["maskedPaths"].remove("/proc/execdomains")


def with_other_tmpfs(config: dict[str, Any]) -> None:
    """Over a mask, as runtimes have done, and one of the known places without its flags."""
    config["mounts"].append({"destination": "/proc/driver", "type": "tmpfs", "source": "t", "options": ["mode=1777"]})
    config["linux"]["maskedPaths"].remove("/proc/driver")
    (shared,) = (mount for mount in config["mounts"] if mount["destination"] == "/dev/shm")
    shared["options"] = [option for option in shared["options"] if option not in ("nosuid", "nodev")]


def with_another_call(config: dict[str, Any]) -> None:
    shared = config["linux"]["seccomp"]
    allowed = {"names": ["keyctl"], "action": "SCMP_ACT_ALLOW"}
    config["linux"]["seccomp"] = {**shared, "syscalls": [*shared["syscalls"], allowed]}


def weakened(weaken: Weaken, probes: tuple[str, ...]) -> object:
    # That probe measures how much of the processors eight busy processes get.
    marks = [pytest.mark.serial, pytest.mark.extended] if "cpu-hog" in probes else []
    return pytest.param(weaken, probes, id=weaken.__name__, marks=marks)


WEAK: list[tuple[Weaken, tuple[str, ...]]] = [
    (without_seccomp, ("seccomp", "clone", "unshare", "keyrings", "personality", "ptrace-command", "af-alg")),
    (without_seccomp, ("native-aio", "huge-memory", "kernel-programs", "unowned-locks", "page-cache")),
    (without_network_namespace, ("interfaces", "host-loopback", "namespaces")),
    (without_limits, ("cpu-hog",)),
    (without_masks, ("kernel-secrets", "kernel-files", "proc-top")),
    (without_one_mask, ("proc-top",)),
    (with_other_tmpfs, ("write-everywhere", "suid-and-devices")),
    (with_another_call, ("loaded-filter",)),
]


@pytest.mark.parametrize(("weaken", "probes"), [weakened(*each) for each in WEAK])
async def test_a_weakened_sandbox_is_seen_through(
    state_dir: Path, image_store: ImageStore, weaken: Weaken, probes: tuple[str, ...]
) -> None:
    weak = WeakProvider(state_dir, image_store, BIN, "crun")
    change_launcher(weak, WeakLauncher).weaken = weaken
    findings = await attack(weak, SPEC, probes=choose(probes))
    await weak.close()
    verdicts = {finding.probe.id: finding.outcome.verdict for finding in findings}
    unseen = {name for name, verdict in verdicts.items() if verdict is not ProbeVerdict.GOT_THROUGH}
    assert unseen <= {"af-alg"}, findings  # a kernel may be built without it


async def test_a_sandbox_that_dies_was_not_contained_and_is_replaced(provider: OciProvider) -> None:
    async def kill(arena: Arena) -> ProbeResult:
        os.kill(arena.host.first_pid, signal.SIGKILL)
        return contained("so it says")

    deadly = Probe("deadly", Group.AGENT, "kill the agent from the host", kill)
    findings = await attack(provider, SPEC, probes=[deadly, *choose(("no-new-privs",))])
    assert [finding.outcome.verdict for finding in findings] == [ProbeVerdict.GOT_THROUGH, ProbeVerdict.CONTAINED]
    assert "so it says" in findings[0].outcome.evidence


async def test_a_probe_that_breaks_is_undecided_and_counts_as_a_failure(provider: OciProvider) -> None:
    async def broken(arena: Arena) -> ProbeResult:
        return await arena.inside("escape:no_such_attack")

    (finding,) = await attack(provider, SPEC, probes=[Probe("broken", Group.ESCAPE, "nothing", broken)])
    assert finding.outcome.verdict is ProbeVerdict.UNDECIDED
    assert finding.failed


async def test_an_attack_that_is_cancelled_leaves_no_sandbox(provider: OciProvider) -> None:
    running = asyncio.Event()

    async def wait(arena: Arena) -> ProbeResult:
        running.set()
        await asyncio.sleep(3600)
        return contained("never")

    task = asyncio.ensure_future(attack(provider, SPEC, probes=[Probe("wait", Group.LIMITS, "wait", wait)]))
    await running.wait()
    assert len(await provider.list_ids()) == 2
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await provider.list_ids() == []


async def test_an_image_without_python_is_refused_and_nothing_is_left() -> None:
    fake = FakeProvider()
    with pytest.raises(InvalidRequest, match="python3"):
        await attack(fake, SandboxSpec())
    assert await fake.list_ids() == []


@pytest.mark.parametrize(
    ("stdout", "verdict"),
    [
        ('warren-attack:{"verdict": "contained", "evidence": "x"}', ProbeVerdict.CONTAINED),
        ('noise\nwarren-attack:{"verdict": "through", "evidence": "x"}\nmore noise', ProbeVerdict.GOT_THROUGH),
        ('warren-attack:{"verdict": "n/a", "evidence": "x"}', ProbeVerdict.NOT_APPLICABLE),
        ('warren-attack:{"error": "broke"}', ProbeVerdict.UNDECIDED),
        ('warren-attack:{"verdict": "fine", "evidence": "x"}', ProbeVerdict.UNDECIDED),
        ("warren-attack:[1", ProbeVerdict.UNDECIDED),
        ("warren-attack:[]", ProbeVerdict.UNDECIDED),
        ("", ProbeVerdict.UNDECIDED),
    ],
)
def test_only_a_clear_word_is_a_verdict(stdout: str, verdict: ProbeVerdict) -> None:
    assert read_outcome(stdout, "exit code 0").verdict is verdict


def test_ids_are_unique_and_there_are_enough_of_each_group() -> None:
    probes = [*PROBES, *ROOT_PROBES, *API_PROBES]
    ids = [probe.id for probe in probes]
    assert len(ids) == len(set(ids)) >= 200
    for group in Group:
        assert sum(probe.group is group for probe in probes) >= 10


# -- the command


def warren_doctor(state_dir: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": ":".join(sys.path), "WARREN_STATE_DIR": str(state_dir)}
    argv = [sys.executable, "-m", "warren.cli.main", "doctor", "--attack", *arguments]
    return warm_parent.run(argv, capture_output=True, text=True, env=environment, timeout=120, check=False)


def test_the_table_and_its_summary(state_dir: Path, image_store: ImageStore) -> None:
    done = warren_doctor(state_dir, "--only", "capabilities", "--only", "seccomp")
    assert done.returncode == 0, done.stderr
    assert "2 of 2 contained" in done.stdout


def test_the_table_for_programs(state_dir: Path, image_store: ImageStore) -> None:
    done = warren_doctor(state_dir, "--json", "--env", "host", "--only", "capabilities")
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)["probes"]
    assert (row["id"], row["verdict"]) == ("capabilities", "contained")


def test_an_unknown_probe_is_one_sentence(state_dir: Path) -> None:
    done = warren_doctor(state_dir, "--only", "no-such-probe")
    assert done.returncode == 125
    assert "no-such-probe" in done.stderr
    assert "Traceback" not in done.stderr
