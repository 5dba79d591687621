"""Attacks on the agent, which is PID 1, and on the supervisors of commands: a command must not be able to kill, trace,
starve or imitate them."""

import asyncio

from warren.model.errors import UnknownUser
from warren.model.operations import Command, Reason
from warren_attack.probe import Group, Probe, ProbeResult, contained, got_through, judged, undecided, within
from warren_attack.warren.arena import Arena

_G = Group.AGENT
_PATIENCE_S = 8.0


async def _stop_storm(arena: Arena) -> ProbeResult:
    """A stopped process, even one just forked, must not keep the agent from ending a command in time."""
    stopped = 0
    async with arena.holding(arena.sandbox, "agent:stop_everything", seconds=60):
        for _ in range(12):
            commands = [Command(argv=("true",), timeout_s=0.5, grace_s=0) for _ in range(4)]
            running = [asyncio.ensure_future(arena.sandbox.exec(command)) for command in commands]
            done, hung = await asyncio.wait(running, timeout=_PATIENCE_S)
            for task in hung:
                task.cancel()
            if hung:
                return got_through(
                    f"{len(hung)} of 4 commands with a time-out of 0.5 s had not ended after {_PATIENCE_S:g} s"
                )
            stopped += sum(task.exception() is None and task.result().reason is Reason.TIMEOUT for task in done)
            if stopped >= 12:
                break
    if not stopped:
        return undecided("no command was stopped: the storm was none")
    return contained(f"{stopped} commands were stopped as they started, all were ended in time")


async def _stop_file_jobs(arena: Arena) -> ProbeResult:
    """Writes that began in the storm must end, with success or an error, once it is over."""
    async with arena.holding(arena.sandbox, "agent:stop_everything", seconds=6):
        writes = [
            asyncio.ensure_future(arena.sandbox.write(f"/workspace/job{index}", b"x" * 100_000)) for index in range(20)
        ]
        await asyncio.sleep(3)
    hung = (await asyncio.wait(writes, timeout=5))[1]
    for write in hung:
        write.cancel()
    ended = len(await asyncio.gather(*writes, return_exceptions=True)) - len(hung)
    return judged(not hung, f"{ended} of 20 writes came to an end, {len(hung)} hang for ever")


async def _kill_storm(arena: Arena) -> ProbeResult:
    line = "trap '' TERM; while :; do kill -KILL -1; done"
    await arena.sandbox.exec(Command(shell=line, timeout_s=2, grace_s=0, carry_state=False))
    result = await arena.sandbox.exec(Command(argv=("echo", "alive"), timeout_s=10))
    return judged(result.stdout == "alive\n", f"afterwards: {result.reason}, {result.stdout.strip()!r}")


async def _be_the_agent(arena: Arena) -> ProbeResult:
    """No command may run with the agent's own uid, by name or number."""
    taken = []
    for user in ("root", "0", "00", "65535", "4294967295", "-1", "+0", " 0", "0x0", "999999999999"):
        try:
            result = await arena.sandbox.exec(Command(argv=("id", "-u"), user=user, timeout_s=5))
        except UnknownUser:
            continue
        if result.stdout.strip() in (
            {"65535", "4294967295", ""} if arena.spec.sudo else {"0", "65535", "4294967295", ""}
        ):
            taken.append(f"{user!r} gave {result.stdout.strip() or result.stderr.strip()!r}")
    return judged(not taken, "; ".join(taken) or "the agent's uid, and uids that are none, are refused")


async def _forged_frames(arena: Arena) -> ProbeResult:
    """Output is data, whatever it looks like."""
    code = "import os\nfor n in range(3000): os.write(1 + n % 2, os.urandom(n % 600) + bytes(range(256)))"
    result = await arena.sandbox.exec(Command(argv=("python3", "-c", code), timeout_s=30, keep_bytes=1 << 24))
    wanted = sum(n % 600 + 256 for n in range(3000))
    after = await arena.sandbox.exec(Command(argv=("echo", "alive"), timeout_s=10))
    evidence = f"{result.bytes_total} of {wanted} bytes of noise came as output, then {after.stdout.strip()!r}"
    return judged(result.bytes_total == wanted and after.stdout == "alive\n", evidence)


async def _shell_state(arena: Arena) -> ProbeResult:
    """State that a command leaves for the next shell must not pile up in the agent, nor reach other commands."""
    spoil = "export LD_PRELOAD=/tmp/evil.so PYTHONSTARTUP=/tmp/evil BASH_ENV=/tmp/evil; cd /tmp; exit 0"
    await arena.sandbox.exec(Command(shell=spoil, timeout_s=10))
    clean = await arena.sandbox.exec(Command(argv=("env",), timeout_s=10))
    apart = await arena.sandbox.exec(Command(shell="env; pwd", carry_state=False, timeout_s=10))
    big = "head -c 80000000 /dev/zero | tr '\\0' A >&60; head -c 80000000 /dev/zero >&59; exit 0"
    await arena.sandbox.exec(Command(shell=big, timeout_s=20))
    after = await arena.sandbox.exec(
        Command(shell="unset LD_PRELOAD PYTHONSTARTUP BASH_ENV; cd; echo alive", timeout_s=10)
    )
    held = int(arena.host.status("VmRSS").split()[0]) // 1024
    leaked = "evil" in clean.stdout + apart.stdout
    poison = "yes" if leaked else "no"
    evidence = f"poison in other commands: {poison}; the agent holds {held} MiB; then {after.stdout.strip()!r}"
    return judged(not leaked and held < 32 and "alive" in after.stdout, evidence)


async def _many_background(arena: Arena) -> ProbeResult:
    """The kept output of many talkative commands at once must not fill the sandbox's memory."""
    line = "head -c 30000000 /dev/zero; sleep 30"
    processes = [await arena.sandbox.start(Command(shell=line, carry_state=False)) for _ in range(4)]
    await asyncio.sleep(2)
    held = int(arena.host.status("VmRSS").split()[0])
    for process in processes:
        await process.kill(0)
        await process.wait()
        await arena.sandbox.forget(process.id)
    limit = arena.spec.limits.memory_mb
    if not held:
        return undecided("the agent's memory cannot be read")
    evidence = f"4 commands said 30 MB each; the agent holds {held / 1024:.1f} MiB of {limit}"
    return judged(held < limit * 1024 // 4, evidence)


async def _oom_agent(arena: Arena) -> ProbeResult:
    """Makes the agent the biggest process, by output that it keeps; then fills memory that no process owns."""
    line = "head -c 12000000 /dev/zero; sleep 60"
    for _ in range(4):
        await arena.sandbox.start(Command(shell=line, carry_state=False))
    await asyncio.sleep(2)
    held = int(arena.host.status("VmRSS").split()[0]) // 1024
    mib = arena.spec.limits.memory_mb
    result = await arena.run("limits:eat_kernel_memory", kind="sockets", mib=mib, timeout_s=30)
    evidence = f"the agent held {held} MiB, the attack ended by {result.reason}"
    if result.reason is Reason.SANDBOX_LOST or not arena.host.alive():
        return got_through(f"{evidence}: the kernel killed the agent")
    for info in await arena.sandbox.processes():
        if info.running:
            await (await arena.sandbox.process(info.id)).kill(0)
    return contained(f"{evidence}, and the agent lives")


def _both(id: str, tries: str, attack: str) -> tuple[Probe[Arena], ...]:
    return tuple(
        within(f"{id}-{who}", _G, f"{tries} the {who}", f"agent:{attack}", who=who) for who in ("agent", "supervisor")
    )


PROBES: tuple[Probe[Arena], ...] = (
    *_both("signal", "send every signal, in five ways, to", "signals"),
    *_both("sigio", "let the kernel send signals to", "signal_by_descriptor"),
    *_both("ptrace", "trace", "trace"),
    *_both("memory", "read or write the memory, take descriptors of", "read_memory"),
    *_both("proc-read", "read environ, mem, maps, fd, root, cwd … in /proc of", "read_proc"),
    *_both("proc-write", "write oom_score_adj, mem, uid_map … in /proc of", "write_proc"),
    *_both("starve", "lower limits, priority, processors of", "starve"),
    within("agent-socket", _G, "find the agent's socket by name, and connect", "agent:find_agent_socket"),
    within("oom-score", _G, "lower our own oom score below the agent's", "agent:own_oom_score"),
    Probe("agent-uid", _G, "be started as the agent's uid", _be_the_agent),
    Probe("forged-frames", _G, "forge the agent's answers by output", _forged_frames),
    Probe("shell-state", _G, "poison or blow up the state carried between shell commands", _shell_state),
    Probe("kept-output", _G, "fill the agent's memory with kept output", _many_background),
    Probe("oom-agent", _G, "have the kernel kill the agent for want of memory", _oom_agent),
    Probe("kill-storm", _G, "kill every new process as it appears", _kill_storm),
    Probe("stop-storm", _G, "stop every new process as it appears, before it is the command", _stop_storm),
    Probe("stop-file-jobs", _G, "stop the agent's file jobs, so that callers wait for ever", _stop_file_jobs),
)
