"""The agent with address and undefined-behaviour sanitizers, fed with noise.

A sanitizer that finds something ends the agent, and with it the test.
"""

import random
import socket
import subprocess
from pathlib import Path

import pytest
from contract.namespace_provider import NamespaceProvider
from contract.provider_kinds import BIN, SanitizedAgentHooks

from warren.model.spec import SandboxSpec
from warren.sandboxes.agent.wire import HEADER, Flag, WireRequest, WireTag, fields, frame

pytestmark = pytest.mark.extended


ROOT = Path(__file__).parents[2]
_FUZZ = ("-max_total_time=60", "-max_len=4096", "-len_control=0", "-timeout=60", "-report_slow_units=60")


@pytest.mark.parametrize("parser", ["agent", "keeper", "relay"])
def test_no_input_breaks_a_parser(parser: str, tmp_path: Path) -> None:
    """Searches for a minute. An input that is found is kept in build/, and the test fails until the fault is mended."""
    kept = ROOT / "build" / "fuzz" / parser
    kept.mkdir(parents=True, exist_ok=True)
    # At some random addresses the sanitizers of older compilers do not start.
    argv = ["setarch", "--addr-no-randomize", str(BIN / f"warren-fuzz-{parser}"), *_FUZZ, f"-artifact_prefix={kept}/"]
    argv += [str(tmp_path), str(kept), str(ROOT / "agent" / "fuzz" / "corpus" / parser)]
    outcome = subprocess.run(argv, capture_output=True, text=True, errors="replace")
    print(outcome.stderr[-10000:])
    inputs = [f"{path}: {path.read_bytes().hex()}" for path in kept.iterdir()]
    assert (outcome.returncode, inputs) == (0, [])


HELLO = frame(WireRequest.HELLO, 0, fields([(WireTag.VERSION, 1)]))


def some_frame(dice: random.Random) -> bytes:
    """A request such as a worker sends, or one with something wrong in it."""
    values: list[int | str | bytes] = ["a", "/workspace/f", "echo hi", "sh", "A=1", "sandboxuser", "..", "", "/"]
    values += [0, 1, 2, 7, 9, 255, 1 << 31, 1 << 63, dice.randbytes(dice.randrange(40)), b"x" * 5000]
    some = [(dice.choice(list(WireTag)), dice.choice(values)) for _ in range(dice.randrange(9))]
    if dice.random() < 0.7:
        some += [(WireTag.ID, dice.choice("abc")), (WireTag.OP, dice.randrange(14)), (WireTag.PATH, "/workspace/x")]
    if dice.random() < 0.5:
        some += [(WireTag.SHELL, "echo hi; sleep 0.01"), (WireTag.FLAGS, int(dice.choice(list(Flag))))]
    payload = bytearray(fields(some))
    for _ in range(dice.randrange(3) if payload else 0):
        payload[dice.randrange(len(payload))] = dice.randrange(256)
    whole = bytearray(frame(dice.choice(list(WireRequest)), dice.randrange(6), bytes(payload)))
    if dice.random() < 0.02:
        whole[dice.randrange(HEADER.size)] = dice.randrange(256)
    return bytes(whole)


@pytest.mark.anyio
@pytest.mark.parametrize("seed", range(4))
async def test_the_agent_outlives_a_worker_that_talks_nonsense(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    provider = NamespaceProvider(SanitizedAgentHooks.agent, tmp_path)
    box = await provider.create(SandboxSpec())
    try:
        await box.close()
        for _ in range(25):
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
                line.settimeout(0.05)
                line.connect(str(tmp_path / box.id / "agent.sock"))
                talk(line, [HELLO, *(some_frame(dice) for _ in range(40))])
        again = await provider.adopt(box.id)
        await again.ping()
        await again.close()
    finally:
        await provider.destroy(box.id)
        await provider.close()


def talk(line: socket.socket, frames: list[bytes]) -> None:
    try:
        for part in frames:
            line.sendall(part)
        while line.recv(65536):
            pass
    except OSError:  # it hung up, or has nothing more to say
        return
