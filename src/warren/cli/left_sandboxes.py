"""Ends the sandboxes in a state directory that no server uses any more."""

import asyncio

import click

from warren.config.settings import Settings
from warren.interfaces.provider import Provider
from warren.model.errors import Unavailable, WarrenError

_FOLDERS = {"oci": "sandboxes", "docker": "docker", "e2b": "e2b"}  # of each provider, in the state directory


def count_sandboxes(settings: Settings) -> dict[str, int]:
    """Returns how many there are of each provider that has some."""

    async def count() -> dict[str, int]:
        found = {}
        for name, provider in _providers(settings).items():
            try:
                found[name] = len(await provider.list_ids())
            finally:
                await provider.close()
        return {name: count for name, count in found.items() if count}

    return asyncio.run(count())


def destroy_sandboxes(settings: Settings) -> None:
    """Raises Unavailable."""

    async def destroy_all() -> None:
        for name, provider in _providers(settings).items():
            try:
                ids = await provider.list_ids()
                for number, sandbox_id in enumerate(ids, 1):
                    click.echo(f"ending sandbox {number} of {len(ids)} of the provider {name}: {sandbox_id}")
                    await provider.destroy(sandbox_id)
            finally:
                await provider.close()

    try:
        asyncio.run(destroy_all())
    except WarrenError as exc:
        raise Unavailable(f"a sandbox could not be ended: {exc.message}", remedy="run this again") from exc


def _providers(settings: Settings) -> dict[str, Provider]:
    """Returns the providers that may have sandboxes in the state directory, also if the server does not use them any
    more."""
    from warren.app.wiring import build_provider

    used = [name for name, folder in _FOLDERS.items() if (settings.state_dir / folder).is_dir()]
    return {name: build_provider(settings, name) for name in used}
