"""The client of Warren under the name that the first version of its interface had."""

from warren import SandboxClient

__all__ = ["SandboxClient"]
