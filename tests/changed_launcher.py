"""Gives a provider another launcher, which makes sandboxes that are not as they should be: does somebody notice?"""

from typing import TypeVar

from warren.sandboxes.providers.oci import OciProvider
from warren.sandboxes.providers.oci_launcher import OciLauncher

L = TypeVar("L", bound=OciLauncher)


def change_launcher(provider: OciProvider, kind: type[L]) -> L:
    """Replaces the launcher of a provider that has made no sandbox yet. Returns the new one."""
    old = provider._launcher
    new = kind(old._programs, old._runtimes, old._hierarchies, old._gpus, old._options)
    provider._launcher = new
    return new
