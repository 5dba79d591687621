"""Root inside a sandbox that allows it: users named `root`, the program sudo, and what neither can do."""

import asyncio
import io
import re
import zipfile
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest
from contract.files_contract import FilesContract
from contract.provider_kinds import BIN, EACH_RUNTIME, DirectHooks
from contract.sandbox_contract import SandboxContract

from warren.images.store.store import ImageStore
from warren.interfaces.images import RootFs
from warren.interfaces.sandbox import Process, Sandbox
from warren.interfaces.worker import Claim
from warren.kernel.clock import SystemClock
from warren.model.environment import Environment, PoolSize
from warren.model.errors import InvalidRequest, PermissionDenied, UnknownUser
from warren.model.operations import Command, ExecResult, Reason, TerminalSize
from warren.model.spec import Layer, Limits, SandboxSpec
from warren.sandboxes.providers import hardening, oci_launch
from warren.sandboxes.providers.docker import DockerProvider
from warren.sandboxes.providers.oci import OciProvider
from warren.worker.guard import MachineGuard
from warren.worker.options import WorkerOptions
from warren.worker.worker import LocalWorker

pytestmark = pytest.mark.anyio

SPEC = SandboxSpec(image="base", limits=Limits(cpus=2), sudo=True, writable_root=True)


class TestSandboxWithRoot(DirectHooks, SandboxContract):
    pytestmark = pytest.mark.extended

    def spec(self) -> SandboxSpec:
        return SPEC


class TestFilesWithRoot(DirectHooks, FilesContract):
    pytestmark = pytest.mark.extended

    def spec(self) -> SandboxSpec:
        return SPEC


@pytest.fixture
async def provider(state_dir: Path, image_store: ImageStore) -> AsyncIterator[OciProvider]:
    provider = OciProvider(state_dir, image_store, BIN)
    yield provider
    for sandbox_id in await provider.list_ids():
        await provider.destroy(sandbox_id)
    await provider.close()


@pytest.fixture(params=EACH_RUNTIME)
async def box(request: pytest.FixtureRequest, state_dir: Path, image_store: ImageStore) -> AsyncIterator[Sandbox]:
    provider = OciProvider(state_dir, image_store, BIN, request.param)
    box = await provider.create(SPEC)
    yield box
    await provider.destroy(box.id)
    await provider.close()


async def sh(box: Sandbox, line: str, user: str = "", timeout_s: float = 30) -> ExecResult:
    return await box.exec(Command(shell=line, user=user, timeout_s=timeout_s, grace_s=0.5, carry_state=False))


async def output_until(process: Process, pattern: str) -> str:
    text = ""
    with anyio.move_on_after(20):
        async for chunk in process.output():
            text += chunk.data.decode(errors="replace")
            if re.search(pattern, text):
                return text
    raise AssertionError(f"{pattern} is not in {text!r}")


async def test_what_root_creates_can_be_given_to_a_user(box: Sandbox) -> None:
    await box.write("/deep/er/file", b"x", user="root", in_place=True, owner="sandboxuser", metadata={"key": "value"})
    await box.mkdir("/made/too", user="root", owner="sandboxuser")
    for path in ("/deep", "/deep/er", "/deep/er/file", "/made", "/made/too"):
        info = await box.stat(path, details=True)
        assert (info.uid, info.owner) == (1000, "sandboxuser")
    await sh(box, "echo mine > /tmp/users")
    info = await box.write("/tmp/users", b"root's", user="root", in_place=True, owner="sandboxuser")
    assert (info.owner, info.size) == ("sandboxuser", 6)
    with pytest.raises(PermissionDenied):  # only root gives things away
        await box.write("given", b"x", in_place=True, owner="root")
    await sh(box, "echo > /etc/passwd; echo > /etc/group", "root")
    assert (await box.stat("/deep/er/file", user="1000", details=True)).owner == "1000"


async def test_commands_files_and_terminals_can_be_roots(box: Sandbox) -> None:
    result = await sh(box, "id -u; id -g; echo $HOME $USER; touch /etc/made && stat -c %u /etc/made", "root")
    assert result.output == "0\n0\n/root root\n0\n"
    assert (await box.write("/etc/new/file", b"text", user="root")).uid == 0
    assert (await sh(box, "cat /etc/new/file; rm -f /etc/new/file")).output.startswith("textrm: cannot remove")
    await box.remove("/etc/new", recursive=True, user="root")
    process = await box.start(Command(argv=("id", "-u"), user="root", terminal=TerminalSize()))
    assert (await process.wait()).output == "0\r\n"
    assert (await sh(box, "ls -ld /root | cut -c 1-10; ls /root/x; cat /etc/shadow")).exit_code != 0


async def test_root_has_the_capabilities_of_the_list_and_nobody_else_has_any(box: Sandbox) -> None:
    numbers = {"CAP_CHOWN": 0, "CAP_DAC_OVERRIDE": 1, "CAP_FOWNER": 3, "CAP_FSETID": 4, "CAP_KILL": 5}
    numbers |= {"CAP_SETGID": 6, "CAP_SETUID": 7, "CAP_NET_BIND_SERVICE": 10}
    assert set(numbers) == set(hardening.ROOT_CAPABILITIES)
    root = f"{sum(1 << number for number in numbers.values()):016x}"
    none = "0" * 16
    show = "grep -E 'Cap|NoNewPrivs|^Seccomp:' /proc/self/status | cut -f 2 | tr '\\n' ' '"
    wanted = f"{none} {root} {root} {root} {none} 1 2 "
    assert (await sh(box, show, "root")).output == wanted
    assert (await sh(box, f'sudo sh -c "{show}"')).output == wanted
    for line in (show, f'sudo -u sandboxuser sh -c "{show}"'):
        assert (await sh(box, line)).output == f"{none} {none} {none} {none} {none} 1 2 "
    found = box.isolation
    assert {Layer.CAPABILITIES, Layer.NO_HOST_ROOT, Layer.UNIQUE_UID, Layer.NO_NEW_PRIVS} <= set(found.layers)


async def test_whoever_takes_the_agents_ids_cannot_set_its_limits(box: Sandbox) -> None:
    """Nor those of a supervisor. With a limit of processor time the kernel would end them."""
    code = (
        "import os, resource\n"
        "targets = (1, os.getppid())\n"
        "for gid in (65535, 0):\n"
        "    if os.fork(): os.wait(); continue\n"
        "    os.setgroups([]); os.setresgid(gid, gid, gid); os.setresuid(65535, 65535, 65535)\n"
        "    for pid in targets:\n"
        "        try: resource.prlimit(pid, resource.RLIMIT_CPU); print('may')\n"
        "        except PermissionError: print('may not')\n"
        "    os._exit(0)\n"
    )
    result = await box.exec(Command(argv=("python3", "-u", "-c", code), user="root"))
    assert result.output == "may not\n" * 4


async def test_sudo_passes_on_streams_directory_environment_and_status(box: Sandbox) -> None:
    result = await sh(box, "cd /tmp; echo in | sudo sh -c 'cat; pwd; echo err >&2; exit 7'; echo $?")
    assert (result.stdout, result.stderr) == ("in\n/tmp\n7\n", "err\n")
    line = "KEPT=1 sudo GIVEN=2 sh -c 'echo $KEPT $GIVEN $HOME $USER $SUDO_USER $SUDO_UID'; sudo -E sh -c 'echo $HOME'"
    assert (await sh(box, line)).output == "1 2 /root root sandboxuser 1000\n/home/sandboxuser\n"
    assert (await sh(box, "sudo sh -c 'kill -9 $$' 2>/dev/null; echo $?")).stdout == "137\n"
    lines = "sudo -u nobody id -un; sudo -u '#1000' id -u; sudo -i pwd; sudo -s echo 'a  b'; sudo -D /var pwd"
    assert (await sh(box, lines)).output == "nobody\n1000\n/root\na  b\n/var\n"
    assert (await sh(box, "sudo -n -- sudo sudo id -u; sudo -v; sudo -k; sudo -l")).output.startswith("0\nEverybody")
    for line in ("sudo no-such-program", "sudo -u no-such-user id", "sudo --no-such-option id", "sudo"):
        result = await sh(box, line)
        assert result.exit_code == 1
        assert result.stderr.startswith(("sudo: ", "usage: sudo"))


async def test_whatever_ends_a_command_ends_what_it_ran_with_sudo(box: Sandbox) -> None:
    count = "ps -e -o args= | grep -c '^sleep 98[7]'; true"
    result = await sh(box, "sudo sleep 987 & sudo sh -c 'trap \"\" TERM; sleep 987; sleep 987'; true", timeout_s=0.7)
    assert result.reason is Reason.TIMEOUT
    assert (await sh(box, count)).stdout == "0\n"
    # The caller of sudo ends, by a signal that it can pass on or not.
    for number in ("TERM", "KILL"):
        await sh(box, f"sudo sleep 987 & sleep 0.3; kill -{number} $!; wait; for i in 1 2 3 4 5; do sleep 0.1; done")
        assert (await sh(box, count)).stdout == "0\n"
    process = await box.start(Command(shell="sudo sleep 987", user=""))
    await asyncio.sleep(0.5)
    await process.kill(0)
    await process.wait()
    assert (await sh(box, count)).stdout == "0\n"


async def test_sudo_in_a_terminal_has_job_control_and_gets_its_keys(box: Sandbox) -> None:
    bash = Command(argv=("bash", "--norc", "-i"), env={"PS1": "user> "}, terminal=TerminalSize(24, 80))
    process = await box.start(bash)
    await process.write(b"stty -echo; sudo PS1='ro''ot> ' bash --norc -i\n")
    text = await output_until(process, "root> ")
    assert "no job control" not in text
    await process.write(b"tty; sleep 987 &\nkill %1; sleep 987\n")
    await asyncio.sleep(0.5)
    await process.write(b"\x03")
    await process.write(b"echo code $? in $(stty size); exit 5\n")
    # What is typed before the shell has the terminal again goes to the one that ends.
    await output_until(process, "code 130 in 24 80(?s:.)*user> ")
    await process.write(b"echo left with $?; sudo sleep 987\n")
    await output_until(process, "left with 5")
    await asyncio.sleep(0.5)
    await process.write(b"\x03")
    await asyncio.sleep(0.5)
    await process.write(b"echo then $?; echo a | sudo cat; exit\n")
    await output_until(process, "then 130\r\n(?s:.)*a\r\n")
    assert (await process.wait()).exit_code == 0


async def test_many_callers_of_sudo_wait_for_nobody_and_are_bounded(box: Sandbox) -> None:
    line = "for i in $(seq 40); do (sudo sleep 3 2>/dev/null; echo $?) & done; wait"
    results = (await sh(box, line)).stdout.split()
    assert results.count("0") == 32
    assert len(results) == 40
    # Those who connect and say nothing do not keep the others out, and are dropped.
    code = (
        "import os, socket, subprocess\n"
        "name = b'\\0warren-sudo-%d' % os.getppid()\n"
        "held = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(20)]\n"
        "for one in held: one.connect(name)\n"
        "held[0].send(b'nonsense'); held[1].send(b'')\n"
        "socket.send_fds(held[2], [b'\\1\\0\\0\\0'], [0] * 200)\n"
        "socket.send_fds(held[3], [b'\\1\\0\\0\\0'], [0, 0, 0, 0, 0])\n"
        "print(subprocess.run(['sudo', 'id', '-u'], capture_output=True, text=True).stdout)\n"
    )
    assert (await box.exec(Command(argv=("python3", "-c", code), timeout_s=30))).stdout == "0\n\n"


async def test_users_made_inside_can_be_used_at_once_and_odd_files_block_nothing(box: Sandbox) -> None:
    with pytest.raises(UnknownUser):
        await sh(box, "id", "bob")
    assert (await sh(box, "sudo useradd -m bob && sudo -u bob id -un")).output == "bob\n"
    assert (await sh(box, "id -un; echo $HOME", "bob")).output == "bob\n/home/bob\n"
    for spoil in ("mkfifo", "mkdir", "ln -s /dev/tty", "ln -s /proc/kmsg", "truncate -s 900G"):
        spoilt = await sh(box, f"mv /etc/passwd /etc/kept 2>/dev/null; rm -rf /etc/passwd; {spoil} /etc/passwd", "0")
        with anyio.fail_after(5), pytest.raises(UnknownUser):
            await sh(box, "true", "bob")
        assert (await sh(box, "rm -rf /etc/passwd; cp /etc/kept /etc/passwd", "0")).exit_code == 0, spoilt
    assert (await sh(box, "id -un", "bob")).output == "bob\n"


async def test_apt_installs_as_root(box: Sandbox) -> None:
    """apt fetches as its own user `_apt`; dpkg unpacks with owners, and runs what the package brings."""
    package = """
        set -e; mkdir -p /tmp/deb/DEBIAN /tmp/deb/usr/bin /tmp/deb/var/greet /tmp/repo; cd /tmp
        printf 'Package: greet\\nVersion: 1\\nArchitecture: all\\nMaintainer: m <m@x>\\n' > deb/DEBIAN/control
        echo 'Description: says it' >> deb/DEBIAN/control
        printf '#!/bin/sh\\nset -e\\nuseradd -r greeter\\nchown greeter:mail /var/greet\\n' > deb/DEBIAN/postinst
        echo 'chmod 2770 /var/greet' >> deb/DEBIAN/postinst
        printf '#!/bin/sh\\necho greetings\\n' > deb/usr/bin/greet; chmod 755 deb/DEBIAN/postinst deb/usr/bin/greet
        dpkg-deb --root-owner-group --build deb repo/greet.deb >/dev/null; cd repo
        { dpkg-deb -f greet.deb; echo Filename: ./greet.deb; echo "Size: $(stat -c %s greet.deb)"
          echo "SHA256: $(sha256sum greet.deb | cut -d ' ' -f 1)"; } > Packages
    """
    assert (await sh(box, package)).output == ""
    ground = """
        set -e; mkdir -p /etc/apt/apt.conf.d /etc/apt/preferences.d /var/lib/dpkg/info /var/lib/dpkg/updates
        mkdir -p /var/lib/apt/lists/partial /var/cache/apt/archives/partial /var/log/apt; touch /var/lib/dpkg/status
        grep -q ^_apt: /etc/passwd || echo _apt:x:42:65534::/nonexistent:/usr/sbin/nologin >> /etc/passwd
        grep -q ^mail: /etc/group || echo mail:x:8: >> /etc/group
        echo 'deb [trusted=yes] http://127.0.0.1:8099/ ./' > /etc/apt/sources.list
    """
    assert (await sh(box, ground, "root")).output == ""
    await box.start(Command(argv=("python3", "-m", "http.server", "8099", "--bind", "127.0.0.1"), cwd="/tmp/repo"))
    result = await sh(
        box, "sleep 1; sudo apt-get update && sudo apt-get install -y --no-install-recommends greet", "", 120
    )
    assert result.exit_code == 0, result.output
    assert "W: " not in result.output
    assert (await sh(box, "greet; stat -c '%U %G %a' /var/greet /usr/bin/greet")).output == (
        "greetings\ngreeter mail 2770\nroot root 755\n"
    )


async def test_pip_installs_for_everybody(provider: OciProvider) -> None:
    wheel = io.BytesIO()
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("greet.py", "print('greetings')\n")
        file.writestr("greet-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: greet\nVersion: 1\n")
        file.writestr("greet-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr("greet-1.dist-info/RECORD", "greet.py,,\n")
    box = await provider.create(SPEC)
    await box.write("/tmp/greet-1-py3-none-any.whl", wheel.getvalue())
    install = "sudo pip install -q --no-index --break-system-packages --root-user-action=ignore /tmp/greet-*.whl"
    result = await sh(box, f"{install} && sudo -u nobody python3 -m greet", timeout_s=60)
    assert result.output == "greetings\n"


async def test_a_sandbox_without_sudo_has_no_root(provider: OciProvider) -> None:
    box = await provider.create(SandboxSpec(image="base", writable_root=True))
    with pytest.raises(UnknownUser, match="there is no user root in this sandbox") as refused:
        await sh(box, "id", "root")
    assert "sudo: true" in (refused.value.remedy or "")
    with pytest.raises(UnknownUser):
        await box.write("/etc/x", b"", user="0")
    for user in ("sandboxuser:0", "sandboxuser:42", "1000:42"):  # nor a choice of groups
        with pytest.raises(UnknownUser):
            await sh(box, "id", user)
    assert (await sh(box, "ls /usr/local/bin/sudo /usr/bin/sudo")).exit_code == 2


async def test_sudo_alone_leaves_the_root_read_only(provider: OciProvider) -> None:
    box = await provider.create(SandboxSpec(image="base", sudo=True, require=frozenset({Layer.READ_ONLY_ROOT})))
    result = await sh(box, "sudo touch /etc/x; sudo chown nobody /tmp && stat -c %U /tmp")
    assert result.output == "touch: cannot touch '/etc/x': Read-only file system\nnobody\n"


async def test_the_program_sudo_hides_no_link_of_an_image(tmp_path: Path) -> None:
    (tmp_path / "usr").mkdir()
    assert oci_launch.has_room_for_sudo(RootFs(tmp_path, host_usr=False))
    (tmp_path / "usr" / "bin").symlink_to("/bin")
    assert not oci_launch.has_room_for_sudo(RootFs(tmp_path, host_usr=False))


async def test_docker_refuses_root_inside(state_dir: Path, image_store: ImageStore) -> None:
    provider = DockerProvider(state_dir, image_store, BIN)
    with pytest.raises(InvalidRequest, match="would be the machine's root"):
        await provider.create(SandboxSpec(image="base", sudo=True))
    await provider.close()


async def test_the_machines_own_usr_is_refused_with_root_inside(provider: OciProvider) -> None:
    """Its files belong to root inside, also those that only the machine's root may read."""
    for act in (provider.check, provider.create):
        with pytest.raises(InvalidRequest, match="only the machine's root may read") as refused:
            await act(SandboxSpec(image="host", sudo=True))
        assert "`base`" in (refused.value.remedy or "")
    assert await provider.list_ids() == []


async def test_an_environment_names_its_user_in_every_sandbox(provider: OciProvider) -> None:
    """Both in one of the pool and in one that is made for a claim; the usual name goes on to work."""
    environment = Environment("e", "base", writable_root=True, sudo=True, user="user", pool=PoolSize(1, 1, 1))
    worker = LocalWorker(
        "one",
        [provider],
        lambda name: environment,
        WorkerOptions(clock=SystemClock(), guard=MachineGuard(Path("/tmp"), 0, 0), default_environment="e"),
    )
    await worker.start()
    try:
        for limits in (None, Limits(memory_mb=300)):
            box = (await worker.claim(Claim("e", limits=limits))).sandbox
            line = "id -un; id -gn; stat -c %U:%G /workspace; stat -c %U:%a /etc/passwd; sudo id -un"
            result = await box.exec(Command(shell=f"{line}; sudo -u sandboxuser id -u"))
            assert result.stdout.split() == ["user", "user", "user:user", "root:644", "root", "1000"], result.output
            assert (await box.exec(Command(shell="id -u", user="sandboxuser"))).stdout == "1000\n"
            named = await box.exec(Command(shell="id -un; echo ~", user="user", carry_state=False))
            assert named.stdout == "user\n/home/user\n"
    finally:
        await worker.close()
