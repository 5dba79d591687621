"""ENV, WORKDIR and USER of an image, in real sandboxes: exec, terminals, files, after a restart, and in pools."""

import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from this_run import new_state_dir

import warren
from warren.images.store.store import ImageStore, silent
from warren.images.trees.own_images import build_host
from warren.images.trees.tree import Tree
from warren.interfaces.sandbox import Sandbox
from warren.model.errors import InvalidPath
from warren.model.image import ImageConfig
from warren.model.operations import Command, TerminalSize
from warren.model.spec import SEARCH_PATH, Limits, SandboxSpec
from warren.sandboxes.providers.oci import OciProvider

BIN = Path(warren.__file__).parent / "bin"
LIMITS = Limits(cpus=2, disk_mb=32)
CONFIG = ImageConfig(
    env={"GREETING": "from the image", "LEVEL": "image", "PATH": "/opt/tool/bin:/usr/bin:/bin", "HOME": "/root"},
    workdir="/opt/tool",
)

pytestmark = pytest.mark.anyio


@pytest.fixture
def state(image_store: ImageStore) -> Iterator[Path]:
    path = new_state_dir()
    yield path
    left = list((path / "sandboxes").glob("*"))
    shutil.rmtree(path)
    assert left == []


def make(state: Path, config: ImageConfig) -> ImageStore:
    store = ImageStore(state)

    def fill(path: Path) -> ImageConfig:
        build_host(path, path.parents[1], silent)
        with Tree(path) as tree:
            tree.put_file("/opt/tool/bin/hello", "#!/bin/sh\necho hello\n", 0o755)
            tree.put_file("/etc/passwd", "root:x:0:0::/root:/bin/sh\napp:x:321:654:App:/srv/app:/bin/sh\n")
            tree.put_file("/etc/group", "root:x:0:\nstaff:x:50:\napp:x:654:\n")
            tree.make_directory("/srv/app")
        return config

    store.make("mine", "test", fill, silent, host_usr=True)
    return store


@pytest.fixture
async def provider(state: Path, request: pytest.FixtureRequest) -> AsyncIterator[OciProvider]:
    provider = OciProvider(state, make(state, request.param), BIN)
    yield provider
    for sandbox_id in await provider.list_ids():
        await provider.destroy(sandbox_id)
    await provider.close()


async def say(sandbox: Sandbox, script: str, **options: object) -> str:
    result = await sandbox.exec(Command(argv=("/bin/sh", "-c", script), **options))  # type: ignore[arg-type]
    return result.output.strip()


@pytest.mark.parametrize("provider", [CONFIG], indirect=True)
async def test_variables_and_directory_of_the_image_hold(provider: OciProvider) -> None:
    spec = SandboxSpec("mine", LIMITS, {"LEVEL": "environment"})
    sandbox = await provider.create(spec)
    assert await say(sandbox, "echo $GREETING; pwd; hello") == "from the image\n/opt/tool\nhello"
    assert (await sandbox.exec(Command(shell="pwd; hello"))).output == "/opt/tool\nhello\n"
    assert await say(sandbox, "echo $LEVEL") == "environment"
    assert await say(sandbox, "echo $LEVEL", base_env={"LEVEL": "session"}) == "session"
    assert await say(sandbox, "echo $LEVEL", base_env={"LEVEL": "session"}, env={"LEVEL": "command"}) == "command"
    # Without a user of its own the image has the sandbox user, whose home is not root's.
    assert await say(sandbox, "id -un; echo $HOME") == "sandboxuser\n/home/sandboxuser"
    path = (await say(sandbox, "echo $PATH")).split(":")
    assert path[:4] == ["/home/sandboxuser/.local/bin", "/opt/tool/bin", "/usr/bin", "/bin"]
    assert set(SEARCH_PATH.split(":")) <= set(path)
    with pytest.raises(InvalidPath, match="/workspace/sub"):  # relative paths start there, as ever
        await say(sandbox, "pwd", cwd="sub")
    assert (await sandbox.write("relative", b"x")).path == "/workspace/relative"

    terminal = await sandbox.start(Command(shell="pwd; echo $GREETING", terminal=TerminalSize()))
    assert (await terminal.wait()).output.split() == ["/opt/tool", "from", "the", "image"]
    again = OciProvider(
        provider.directory(sandbox.id).parents[1], ImageStore(provider.directory("0" * 32).parents[1]), BIN
    )
    try:
        adopted = await again.adopt(sandbox.id)
        assert await say(adopted, "echo $GREETING $LEVEL; pwd") == "from the image environment\n/opt/tool"
    finally:
        await again.close()


@pytest.mark.parametrize(
    ("provider", "expected"),
    [
        (ImageConfig(user="app"), "app 321 654 /srv/app /workspace"),
        (ImageConfig(user="321"), "app 321 654 /srv/app /workspace"),
        (ImageConfig(user="app:staff", workdir="/workspace/deep/down"), "app 321 50 /srv/app /workspace/deep/down"),
        (ImageConfig(user="4000:4001", workdir="/made"), "4000 4000 4001 /workspace /made"),
        (ImageConfig(user="4000:0"), "4000 4000 4000 /workspace /workspace"),
        (ImageConfig(user="65534"), "65534 65534 65534 /workspace /workspace"),
        (ImageConfig(user="0:0", workdir="/"), "sandboxuser 1000 1000 /home/sandboxuser /workspace"),
        (ImageConfig(user="root"), "sandboxuser 1000 1000 /home/sandboxuser /workspace"),
    ],
    indirect=["provider"],
)
async def test_the_user_of_the_image_runs_commands_and_owns_the_workspace(provider: OciProvider, expected: str) -> None:
    sandbox = await provider.create(SandboxSpec("mine", LIMITS))
    assert await say(sandbox, "echo $(id -un 2>&- || id -u) $(id -u) $(id -g) $HOME $(pwd)") == expected
    assert await say(sandbox, "touch /workspace/mine && echo yes") == "yes"
    await sandbox.write("/workspace/by-api", b"x")
    uid = expected.split()[1]
    assert await say(sandbox, "stat -c %u /workspace /workspace/mine /workspace/by-api | sort -u") == uid
    assert await say(sandbox, "id -un", user="sandboxuser") == "sandboxuser"
    if "deep" in expected:
        assert await say(sandbox, "touch here && echo yes") == "yes"
