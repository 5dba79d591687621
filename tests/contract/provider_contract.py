"""What every provider promises (interfaces/provider.py), as tests with sentences for names.

A provider's own test module subclasses `ProviderContract`, gives it a `provider` fixture, and says
how such a provider comes back after a restart (`reopened`) and how a sandbox dies (`lose`).
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import anyio
import pytest

from warren.interfaces.provider import Provider
from warren.interfaces.sandbox import Sandbox
from warren.model.capability import Capability
from warren.model.errors import (
    InvalidRequest,
    IsolationUnavailable,
    NoSpace,
    NotFound,
    PortClosed,
    SandboxLost,
    SandboxNotFound,
    WarrenError,
)
from warren.model.operations import Command, Reason, TerminalSize
from warren.model.spec import USER_UID, Layer, Limits, SandboxSpec


class ProviderHooks:
    """What a suite must know of a provider beyond its interface."""

    async def reopened(self, provider: Provider) -> Provider:
        """The same provider as a new process would have it, over the same state."""
        raise NotImplementedError

    async def lose(self, provider: Provider, sandbox: Sandbox) -> None:
        """Kills the sandbox behind the provider's back."""
        raise NotImplementedError

    def spec(self) -> SandboxSpec:
        """The sandbox the tests use."""
        return SandboxSpec()

    async def user_uid(self, sandbox: Sandbox) -> int:
        """The uid that the sandbox user has inside: without a user namespace it is the host's."""
        return USER_UID


@pytest.mark.anyio
class ProviderContract(ProviderHooks):
    @pytest.fixture
    async def provider(self) -> AsyncIterator[Provider]:
        raise NotImplementedError
        yield

    async def test_a_created_sandbox_runs_a_command_at_once(self, provider: Provider) -> None:
        box = await provider.create(self.spec())
        try:
            assert (await box.exec(Command(shell="echo ready"))).stdout == "ready\n"
        finally:
            await provider.destroy(box.id)

    async def test_a_sandbox_is_listed_until_it_is_destroyed(self, provider: Provider) -> None:
        box = await provider.create(self.spec())
        assert box.id in await provider.list_ids()
        await provider.destroy(box.id)
        assert box.id not in await provider.list_ids()

    async def test_with_labels_only_those_that_have_all_of_them_are_listed(self, provider: Provider) -> None:
        both = await provider.create(replace(self.spec(), labels={"worker": "one", "colour": "red"}))
        one = await provider.create(replace(self.spec(), labels={"worker": "one"}))
        none = await provider.create(self.spec())
        try:
            assert set(await provider.list_ids({"worker": "one"})) == {both.id, one.id}
            assert set(await provider.list_ids({"worker": "one", "colour": "red"})) == {both.id}
            assert set(await provider.list_ids({"worker": "two"})) == set()
            assert {both.id, one.id, none.id} <= set(await provider.list_ids({}))
        finally:
            await asyncio.gather(*(provider.destroy(box.id) for box in (both, one, none)))

    async def test_labels_are_known_after_a_restart(self, provider: Provider) -> None:
        box = await provider.create(replace(self.spec(), labels={"worker": "one"}))
        again = await self.reopened(provider)
        try:
            assert await again.list_ids({"worker": "one"}) == [box.id]
        finally:
            await again.destroy(box.id)
            await again.close()

    async def test_a_saved_disk_that_is_not_there_is_refused(self, provider: Provider) -> None:
        refused = NotFound if Capability.SNAPSHOTS in provider.capabilities else InvalidRequest
        for attempt in (provider.check, provider.create):
            with pytest.raises(refused):
                await attempt(replace(self.spec(), disk="never-saved"))

    async def test_destroy_is_idempotent(self, provider: Provider) -> None:
        box = await provider.create(self.spec())
        await provider.destroy(box.id)
        await provider.destroy(box.id)
        assert box.id not in await provider.list_ids()

    async def test_destroying_what_never_was_succeeds(self, provider: Provider) -> None:
        await provider.destroy("sb_0123456789abcdef")

    async def test_destroying_twice_at_once_succeeds(self, provider: Provider) -> None:
        box = await provider.create(self.spec())
        await asyncio.gather(provider.destroy(box.id), provider.destroy(box.id))
        assert box.id not in await provider.list_ids()

    async def test_destroy_ends_a_running_command_and_says_so(self, provider: Provider) -> None:
        box = await provider.create(self.spec())
        process = await box.start(Command(shell="sleep 60"))
        waiting = asyncio.ensure_future(process.wait())
        await provider.destroy(box.id)
        with anyio.fail_after(10):
            assert (await waiting).reason is Reason.SANDBOX_LOST

    async def test_two_sandboxes_have_different_ids_and_files(self, provider: Provider) -> None:
        one, two = await provider.create(self.spec()), await provider.create(self.spec())
        try:
            await one.write("only-here", b"1")
            assert one.id != two.id
            assert [info.name for info in await two.list("/workspace")] == []
        finally:
            await provider.destroy(one.id)
            await provider.destroy(two.id)

    async def test_many_are_created_at_once(self, provider: Provider) -> None:
        boxes = await asyncio.gather(*(provider.create(self.spec()) for _ in range(5)))
        try:
            results = await asyncio.gather(*(box.exec(Command(shell="true")) for box in boxes))
            assert [result.exit_code for result in results] == [0] * 5
            assert len({box.id for box in boxes}) == 5
        finally:
            await asyncio.gather(*(provider.destroy(box.id) for box in boxes))

    @pytest.mark.parametrize("after_s", [0.0, 0.001, 0.005, 0.01, 0.02, 0.05])
    async def test_a_cancelled_create_leaves_nothing(self, provider: Provider, after_s: float) -> None:
        before = set(await provider.list_ids())
        with anyio.move_on_after(after_s) as scope:
            box = await provider.create(self.spec())
        if not scope.cancelled_caught:
            await provider.destroy(box.id)
        assert set(await provider.list_ids()) == before

    async def test_a_create_whose_task_is_cancelled_leaves_nothing(self, provider: Provider) -> None:
        before = set(await provider.list_ids())
        task = asyncio.ensure_future(provider.create(self.spec()))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert set(await provider.list_ids()) == before

    async def test_isolation_is_reported_with_evidence(self, provider: Provider) -> None:
        box = await provider.create(self.spec())
        try:
            assert box.isolation.provider == provider.name
            assert all(evidence for evidence in box.isolation.layers.values())
            assert set(box.isolation.layers) | set(box.isolation.missing) == set(Layer)
            assert not set(box.isolation.layers) & set(box.isolation.missing)
        finally:
            await provider.destroy(box.id)

    async def test_a_user_namespace_is_in_force_where_the_provider_declares_it(self, provider: Provider) -> None:
        if Capability.USER_NAMESPACE in provider.capabilities:
            box = await provider.create(replace(self.spec(), require=frozenset({Layer.USER_NAMESPACE})))
            await provider.destroy(box.id)
            assert Layer.USER_NAMESPACE in box.isolation

    async def test_a_terminal_is_given_where_the_provider_declares_it_and_refused_elsewhere(
        self, provider: Provider
    ) -> None:
        box = await provider.create(self.spec())
        command = Command(shell="echo in a terminal", terminal=TerminalSize())
        try:
            if Capability.TERMINALS in provider.capabilities:
                process = await box.start(command)
                assert [info.terminal for info in await box.processes()] == [True]
                with anyio.fail_after(10):
                    assert (await process.wait()).exit_code == 0
            else:
                with pytest.raises(InvalidRequest, match=f"provider {provider.name} .*capability terminals"):
                    await box.start(command)
        finally:
            await provider.destroy(box.id)

    async def test_a_port_is_reached_where_the_provider_declares_it_and_refused_elsewhere(
        self, provider: Provider
    ) -> None:
        box = await provider.create(self.spec())
        try:
            if Capability.PORTS not in provider.capabilities:
                with pytest.raises(InvalidRequest, match=f"provider {provider.name} .*capability ports"):
                    await box.dial(3000)
                return
            with pytest.raises(PortClosed):
                await box.dial(3000)
            program = "import socket; s = socket.create_server(('127.0.0.1', 3000)); s.accept()[0].sendall(b'hello')"
            await box.start(Command(argv=("python3", "-c", program)))
            with anyio.fail_after(20):
                while not await box.ports():
                    await asyncio.sleep(0.02)
                again = await self.reopened(provider)
                after_restart = await again.adopt(box.id)
                assert [(each.port, each.address) for each in await after_restart.ports()] == [(3000, "127.0.0.1")]
                with await after_restart.dial(3000) as connected:
                    assert await asyncio.get_running_loop().sock_recv(connected, 9) == b"hello"
                await after_restart.close()
            await self.lose(provider, box)
            with pytest.raises(SandboxLost):
                await box.dial(3000)
        finally:
            await provider.destroy(box.id)

    async def test_a_required_layer_that_is_missing_starts_nothing(self, provider: Provider) -> None:
        box = await provider.create(self.spec())
        missing = frozenset(box.isolation.missing)
        await provider.destroy(box.id)
        if not missing:
            box = await provider.create(replace(self.spec(), require=frozenset(Layer)))
            await provider.destroy(box.id)
            assert set(box.isolation.layers) == set(Layer)
            return
        before = set(await provider.list_ids())
        spec = self.spec()
        with pytest.raises(IsolationUnavailable):
            await provider.create(SandboxSpec(image=spec.image, limits=spec.limits, require=missing))
        assert set(await provider.list_ids()) == before

    async def test_required_layers_that_are_there_are_in_force(self, provider: Provider) -> None:
        box = await provider.create(self.spec())
        there = frozenset(box.isolation.layers)
        await provider.destroy(box.id)
        spec = self.spec()
        box = await provider.create(SandboxSpec(image=spec.image, limits=spec.limits, require=there))
        try:
            assert there <= set(box.isolation.layers)
        finally:
            await provider.destroy(box.id)

    async def test_the_environment_of_the_spec_is_in_every_command(self, provider: Provider) -> None:
        box = await provider.create(SandboxSpec(image=self.spec().image, env={"COLOUR": "blue", "B": "x y'z"}))
        try:
            assert (await box.exec(Command(shell='echo "$COLOUR $B"'))).stdout == "blue x y'z\n"
            assert (await box.exec(Command(argv=("printenv", "COLOUR")))).stdout == "blue\n"
        finally:
            await provider.destroy(box.id)

    async def test_an_export_over_a_variable_of_the_spec_lasts(self, provider: Provider) -> None:
        box = await provider.create(SandboxSpec(image=self.spec().image, env={"COLOUR": "blue"}))
        try:
            await box.exec(Command(shell="export COLOUR=red"))
            assert (await box.exec(Command(shell="echo $COLOUR"))).stdout == "red\n"
            assert (await box.exec(Command(shell="echo $COLOUR", carry_state=False))).stdout == "blue\n"
        finally:
            await provider.destroy(box.id)

    async def test_a_full_disk_says_no_space_and_keeps_the_old_file(self, provider: Provider) -> None:
        box = await provider.create(SandboxSpec(image=self.spec().image, limits=Limits(disk_mb=16)))
        try:
            await box.write("small", b"old")

            async def much() -> AsyncIterator[bytes]:
                for _ in range(40):
                    yield bytes(1024 * 1024)

            with pytest.raises(NoSpace):
                await box.write("small", much())
            assert b"".join([part async for part in box.read("small")]) == b"old"
        finally:
            await provider.destroy(box.id)

    async def test_an_unknown_image_is_one_clear_sentence(self, provider: Provider) -> None:
        before = set(await provider.list_ids())
        with pytest.raises(WarrenError, match="no-such-image"):
            await provider.create(SandboxSpec(image="no-such-image"))
        assert set(await provider.list_ids()) == before

    async def test_adopting_what_never_was_is_not_found(self, provider: Provider) -> None:
        with pytest.raises(SandboxNotFound):
            await provider.adopt("sb_0123456789abcdef")

    async def test_adopting_a_dead_sandbox_is_lost(self, provider: Provider) -> None:
        box = await provider.create(self.spec())
        try:
            await self.lose(provider, box)
            with pytest.raises(SandboxLost):
                await provider.adopt(box.id)
        finally:
            await provider.destroy(box.id)

    async def test_closing_destroys_nothing_and_a_new_provider_lists_it(self, provider: Provider) -> None:
        box = await provider.create(self.spec())
        await box.close()
        await provider.close()
        again = await self.reopened(provider)
        try:
            assert box.id in await again.list_ids()
        finally:
            await again.destroy(box.id)
            assert box.id not in await again.list_ids()
            await again.close()

    async def test_after_a_restart_a_running_command_is_found_with_all_its_output(self, provider: Provider) -> None:
        box = await provider.create(self.spec())
        process = await box.start(Command(shell="echo before; cat; echo after"), process_id="survivor")
        reading = process.output()
        assert (await anext(reading)).data.startswith(b"before")
        await reading.aclose()  # type: ignore[attr-defined]
        await box.close()
        await provider.close()
        again = await self.reopened(provider)
        try:
            adopted = await again.adopt(box.id)
            assert adopted.isolation.layers.keys() == box.isolation.layers.keys()
            found = await adopted.process("survivor")
            await found.write(b"meanwhile\n")
            await found.close_stdin()
            with anyio.fail_after(10):
                result = await found.wait()
            assert (result.stdout, result.exit_code) == ("before\nmeanwhile\nafter\n", 0)
            replayed = b"".join([chunk.data async for chunk in found.output()])
            assert replayed == b"before\nmeanwhile\nafter\n"
            await adopted.close()
        finally:
            await again.destroy(box.id)
            await again.close()

    async def test_after_a_restart_directory_and_exports_are_still_there(self, provider: Provider) -> None:
        box = await provider.create(self.spec())
        await box.exec(Command(shell="cd /tmp; export KEPT=yes"))
        await box.close()
        again = await self.reopened(provider)
        try:
            adopted = await again.adopt(box.id)
            assert (await adopted.exec(Command(shell="pwd; echo $KEPT"))).stdout == "/tmp\nyes\n"
            await adopted.close()
        finally:
            await again.destroy(box.id)
            await again.close()

    async def test_a_lost_sandbox_is_still_listed_and_can_be_destroyed(self, provider: Provider) -> None:
        box = await provider.create(self.spec())
        await self.lose(provider, box)
        assert box.id in await provider.list_ids()
        await provider.destroy(box.id)
        assert box.id not in await provider.list_ids()
