"""`client.volumes`: named disks that outlive sessions. None of this needs a session, or makes one."""

# Made from src/warren/sdk/aio/volumes.py by scripts/generate_sync.py: edit that one.

from collections.abc import Mapping
from typing import Any, Final

from warren.sdk.blocking.backend import Backend, list_all
from warren.sdk.results import VolumeInfo

_COPY_S: Final = 600.0  # as long as copying a large one may take


class Volumes:
    """The volumes of the client's tenant. A volume is meant by its name or its id."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def create(self, name: str, size_mb: int | None = None, *, metadata: Mapping[str, str] | None = None) -> VolumeInfo:
        """Makes an empty volume, of the server's usual size if none is given. Raises Conflict if there is one."""
        given: dict[str, Any] = {"name": name, "size_mb": size_mb, "metadata": dict(metadata or {})}
        return VolumeInfo.of(self._backend.call("create_volume", **given))

    def list(self) -> list[VolumeInfo]:
        """Returns all volumes, in the order of their names."""
        return [VolumeInfo.of(each) for each in list_all(self._backend, "volumes")]

    def get(self, volume: str) -> VolumeInfo:
        """Returns a volume, with what it occupies and the sessions that have it. Raises NotFound."""
        return VolumeInfo.of(self._backend.call("get_volume", volume=volume))

    def resize(self, volume: str, size_mb: int) -> VolumeInfo:
        """Makes a volume larger that no session has. Raises Conflict if one has it."""
        found = self._backend.call("change_volume", volume=volume, size_mb=size_mb, work_s=_COPY_S)
        return VolumeInfo.of(found)

    def copy(self, volume: str, name: str) -> VolumeInfo:
        """Copies a volume that no session has."""
        return VolumeInfo.of(self._backend.call("copy_volume", volume=volume, name=name, work_s=_COPY_S))

    def delete(self, volume: str) -> None:
        """Deletes a volume and all that is in it. Raises Conflict if a session has it."""
        self._backend.call("delete_volume", volume=volume)
