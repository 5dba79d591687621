"""How the tests make each provider, restart it, and kill its sandboxes. test_providers.py runs the contracts on them.

Of the kinds that differ only in the runtime, the build of the agent, or the event loop, `make test` runs one; the
others are extended.
"""

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, cast

import pytest
import this_run
from contract.namespace_provider import NamespaceProvider, stop
from contract.provider_contract import ProviderHooks
from contract.saved_disks_contract import SavedDisksHooks
from docker_engine import DockerEngine
from e2b_far_side import KEY, FarSide
from marks import first_of

import warren
from warren.app.maker import spawn_maker
from warren.config.settings import read_settings
from warren.images.store.store import ImageStore
from warren.interfaces.provider import Provider
from warren.interfaces.sandbox import Sandbox
from warren.model.capability import Capability
from warren.model.operations import Command
from warren.model.spec import USER_UID, Limits, SandboxSpec
from warren.sandboxes.host.cgroups import SandboxCgroup
from warren.sandboxes.host.record import SandboxRecord
from warren.sandboxes.host.uids import uid_base
from warren.sandboxes.makers.pool import Makers
from warren.sandboxes.providers.docker import DockerProvider, DockerRecord
from warren.sandboxes.providers.e2b import E2bProvider
from warren.sandboxes.providers.e2b_api import E2bApi
from warren.sandboxes.providers.oci import Making, OciProvider
from warren.testing.fake_provider import FakeProvider

BIN = Path(warren.__file__).parent / "bin"
RUNTIMES = ("direct", "crun", "runc")
PAUSING = frozenset({Capability.TERMINALS, Capability.PAUSE})
EACH_RUNTIME = first_of(RUNTIMES)


async def _close_empty(provider: OciProvider | DockerProvider | E2bProvider) -> None:
    """Fails if the tests have left sandboxes, which are removed."""
    left = await provider.list_ids()
    for sandbox_id in left:
        await provider.destroy(sandbox_id)
    await provider.close()
    assert left == []


class FakeHooks(ProviderHooks):
    @pytest.fixture
    async def provider(self) -> AsyncIterator[Provider]:
        provider = FakeProvider()
        yield provider
        assert await provider.list_ids() == []

    async def reopened(self, provider: Provider) -> Provider:
        return FakeProvider(cast(FakeProvider, provider).machines)

    async def lose(self, provider: Provider, sandbox: Sandbox) -> None:
        cast(FakeProvider, provider).lose(sandbox.id)


class BareFakeHooks(FakeHooks):
    @pytest.fixture
    async def provider(self) -> AsyncIterator[Provider]:
        provider = FakeProvider(name="bare", capabilities=frozenset())
        yield provider
        assert await provider.list_ids() == []


class PausingFakeHooks(FakeHooks):
    @pytest.fixture
    async def provider(self) -> AsyncIterator[Provider]:
        provider = FakeProvider(capabilities=PAUSING)
        yield provider
        assert await provider.list_ids() == []

    async def reopened(self, provider: Provider) -> Provider:
        return FakeProvider(cast(FakeProvider, provider).machines, capabilities=PAUSING)


class SavingFakeHooks(FakeHooks, SavedDisksHooks):
    can = frozenset({Capability.TERMINALS, Capability.PAUSE, Capability.SNAPSHOTS})

    @pytest.fixture
    async def provider(self) -> AsyncIterator[Provider]:
        provider = FakeProvider(capabilities=self.can)
        yield provider
        assert await provider.list_ids() == []

    async def reopened(self, provider: Provider) -> Provider:
        old = cast(FakeProvider, provider)
        return FakeProvider(old.machines, capabilities=self.can, saved_disks=old.saved_disks)

    @pytest.fixture
    async def there(self) -> AsyncIterator[Provider]:
        yield FakeProvider(capabilities=self.can)

    async def is_frozen(self, provider: Provider, sandbox: Sandbox) -> bool:
        return cast(FakeProvider, provider).machines[sandbox.id].frozen


class AgentHooks(ProviderHooks):
    """The real agent in throw-away namespaces: see namespace_provider.py."""

    agent = BIN / "warren-agent"

    @pytest.fixture
    async def provider(self, tmp_path: Path) -> AsyncIterator[Provider]:
        provider = NamespaceProvider(self.agent, tmp_path)
        yield provider
        await provider.close()  # also the links to sandboxes that another provider has destroyed
        assert await provider.list_ids() == []
        assert list(tmp_path.iterdir()) == []

    async def reopened(self, provider: Provider) -> Provider:
        old = cast(NamespaceProvider, provider)
        return NamespaceProvider(old.agent, old.state, old.boxes)

    async def lose(self, provider: Provider, sandbox: Sandbox) -> None:
        await stop(cast(NamespaceProvider, provider).boxes[sandbox.id])


class SanitizedAgentHooks(AgentHooks):
    """With address and undefined-behaviour sanitizers: one that finds something ends the agent, and so the test."""

    pytestmark = pytest.mark.extended
    agent = BIN / "warren-agent-sanitized"


class UvloopAgentHooks(AgentHooks):
    """On the event loop that the server runs on."""

    pytestmark = pytest.mark.extended

    @pytest.fixture(scope="class")
    @classmethod
    def anyio_backend(cls) -> tuple[str, dict[str, Any]]:
        return "asyncio", {"use_uvloop": True}


class OciHooks(ProviderHooks):
    runtime: ClassVar[str]

    def spec(self) -> SandboxSpec:
        return SandboxSpec(image="host", limits=Limits(cpus=2))

    @pytest.fixture
    async def provider(self, state_dir: Path, image_store: ImageStore) -> AsyncIterator[Provider]:
        provider = OciProvider(state_dir, image_store, BIN, self.runtime)
        yield provider
        await _close_empty(provider)

    async def reopened(self, provider: Provider) -> Provider:
        old = cast(OciProvider, provider)
        return OciProvider(old._state, old._images, BIN, self.runtime)

    async def lose(self, provider: Provider, sandbox: Sandbox) -> None:
        record = SandboxRecord.load(cast(OciProvider, provider)._state / "sandboxes" / sandbox.id)
        assert record is not None
        os.kill(record.pid, signal.SIGKILL)
        while record.alive():
            await asyncio.sleep(0.01)


class SavingOciHooks(OciHooks, SavedDisksHooks):
    @pytest.fixture
    async def there(self, image_cache: Path) -> AsyncIterator[Provider]:
        state = this_run.new_state_dir(image_cache)
        provider = OciProvider(state, ImageStore(state), BIN, self.runtime)
        yield provider
        await _close_empty(provider)
        shutil.rmtree(state)

    def _cgroup(self, provider: Provider, sandbox: Sandbox) -> SandboxCgroup:
        return cast(OciProvider, provider)._cgroup_of(sandbox.id)

    async def freeze(self, provider: Provider, sandbox: Sandbox) -> None:
        self._cgroup(provider, sandbox).freeze()

    async def is_frozen(self, provider: Provider, sandbox: Sandbox) -> bool:
        return self._cgroup(provider, sandbox).is_frozen()

    async def thaw(self, provider: Provider, sandbox: Sandbox) -> None:
        self._cgroup(provider, sandbox).thaw()


class SavingDirectHooks(SavingOciHooks):
    runtime = "direct"


class SavingCrunHooks(SavingOciHooks):
    pytestmark = pytest.mark.extended
    runtime = "crun"


class SavingRuncHooks(SavingOciHooks):
    pytestmark = pytest.mark.extended
    runtime = "runc"


class DirectHooks(OciHooks):
    runtime = "direct"


def new_makers(state_dir: Path, runtime: str, count: int = 2, **options: float) -> Makers:
    settings = replace(read_settings({}), state_dir=state_dir, bin_dir=BIN, runtime=runtime)
    return Makers(count, partial(spawn_maker, settings), **options)


class MakersHooks(OciHooks):
    """Made and ended by processes of their own, as a server has them."""

    runtime = "direct"

    @pytest.fixture
    async def provider(self, state_dir: Path, image_store: ImageStore) -> AsyncIterator[Provider]:
        making = Making(new_makers(state_dir, self.runtime))
        provider = OciProvider(state_dir, image_store, BIN, self.runtime, making=making)
        yield provider
        await _close_empty(provider)


class SavingMakersHooks(MakersHooks, SavingOciHooks):
    pass


class CrunMakersHooks(MakersHooks):
    pytestmark = pytest.mark.extended
    runtime = "crun"


class CrunHooks(OciHooks):
    pytestmark = pytest.mark.extended
    runtime = "crun"


class RuncHooks(OciHooks):
    pytestmark = pytest.mark.extended
    runtime = "runc"


class DockerHooks(ProviderHooks):
    """With an engine of the tests' own, which all tests of Docker share."""

    pytestmark: ClassVar = [pytest.mark.extended, pytest.mark.group("docker")]

    def spec(self) -> SandboxSpec:
        return SandboxSpec(limits=Limits(cpus=2))

    @pytest.fixture(scope="class")
    async def provider(
        self, state_dir: Path, image_store: ImageStore, docker_engine: DockerEngine
    ) -> AsyncIterator[Provider]:
        provider = DockerProvider(state_dir, image_store, BIN, docker_engine.url)
        yield provider
        await _close_empty(provider)

    async def reopened(self, provider: Provider) -> Provider:
        old = cast(DockerProvider, provider)
        return DockerProvider(old._state, old._images._images, BIN, old.engine.url)

    async def lose(self, provider: Provider, sandbox: Sandbox) -> None:
        record = DockerRecord.load(cast(DockerProvider, provider).directory(sandbox.id))
        assert record is not None
        os.kill(record.pid, signal.SIGKILL)
        while record.alive():
            await asyncio.sleep(0.01)

    async def user_uid(self, sandbox: Sandbox) -> int:
        uid = int((await sandbox.exec(Command(argv=("id", "-u")))).stdout)
        assert (uid - uid_base(0)) % 65536 == USER_UID
        return uid


class SavingDockerHooks(DockerHooks, SavedDisksHooks):
    @pytest.fixture(scope="class")
    async def there(self, image_cache: Path, docker_engine: DockerEngine) -> AsyncIterator[Provider]:
        state = this_run.new_state_dir(image_cache)
        provider = DockerProvider(state, ImageStore(state), BIN, docker_engine.url)
        yield provider
        await _close_empty(provider)
        shutil.rmtree(state)

    async def is_frozen(self, provider: Provider, sandbox: Sandbox) -> bool:
        docker = cast(DockerProvider, provider)
        record = docker.load_record(sandbox.id)
        assert record is not None
        return docker._cgroup(record).is_frozen()


class E2bHooks(ProviderHooks):
    """With a far side of the tests' own: see e2b_far_side.py."""

    @pytest.fixture
    async def far(self) -> AsyncIterator[FarSide]:
        far = await FarSide().start()
        yield far
        left = list(far.boxes)
        await far.close()
        assert left == []

    @pytest.fixture
    async def provider(self, tmp_path: Path, far: FarSide) -> AsyncIterator[Provider]:
        provider = E2bProvider(tmp_path, BIN, E2bApi(KEY, far.url))
        yield provider
        await _close_empty(provider)

    async def reopened(self, provider: Provider) -> Provider:
        old = cast(E2bProvider, provider)
        return E2bProvider(old._home.parent, BIN, E2bApi(KEY, old.api._api))

    async def lose(self, provider: Provider, sandbox: Sandbox) -> None:
        """Another user of the account ends it."""
        e2b = cast(E2bProvider, provider)
        record = e2b._load(sandbox.id)
        assert record is not None
        await e2b.api.kill(record.far)
        while sandbox._link.is_open:  # type: ignore[attr-defined]
            await asyncio.sleep(0.01)


class VolumesFakeHooks(FakeHooks):
    @pytest.fixture
    async def provider(self) -> AsyncIterator[Provider]:
        provider = FakeProvider(capabilities=frozenset({Capability.VOLUMES}))
        yield provider
        assert await provider.list_ids() == []

    async def reopened(self, provider: Provider) -> Provider:
        old = cast(FakeProvider, provider)
        return FakeProvider(old.machines, capabilities=old.capabilities, volumes=old.volume_images)
