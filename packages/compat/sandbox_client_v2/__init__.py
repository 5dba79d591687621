"""The clients of Warren under the name that the second version of their interface had."""

from warren import BatchSandboxClient, SandboxClient

__all__ = ["BatchSandboxClient", "SandboxClient"]
