"""What holds for a new session that starts from a snapshot. Pure."""

from collections.abc import Callable, Container
from dataclasses import replace

from warren.model.environment import Environment
from warren.model.errors import InvalidRequest
from warren.model.snapshot import Snapshot
from warren.model.spec import Limits
from warren.model.tenant_images import reference_in
from warren.sessions.new_session import NewSession


def with_snapshot(request: NewSession, snapshot: Snapshot, environments: Callable[[str], Environment]) -> NewSession:
    """Returns the request with the environment and the image of the snapshot, if it names no environment."""
    if request.environment:
        return request
    image = _plain(snapshot.image)
    own_image = "" if image == environments(snapshot.environment).image else image
    return replace(request, environment=snapshot.environment, image=request.image or own_image)


def check_beginning(snapshot: Snapshot, environment: Environment, image: str, provider: str) -> None:
    """Raises InvalidRequest if the snapshot's disk does not fit the session. `image` is the one that it asks for."""
    if provider != snapshot.provider:
        raise InvalidRequest(
            f"the snapshot {snapshot.id} is one of the provider {snapshot.provider}, not of {provider}",
            remedy="leave provider out",
        )
    if snapshot.writable_root != environment.writable_root:
        has, wants = ("all files", "read-only") if snapshot.writable_root else ("the workspace alone", "writable")
        raise InvalidRequest(
            f"the snapshot {snapshot.id} has {has}, and the root of the environment {environment.name!r} is {wants}",
            remedy=f"use the environment {snapshot.environment!r}, or leave environment out",
        )
    wanted = _plain(image or environment.image)
    if snapshot.writable_root and wanted != _plain(snapshot.image):
        raise InvalidRequest(
            f"the snapshot {snapshot.id} has changes of the image {_plain(snapshot.image)!r}, not of {wanted!r}",
            remedy="a snapshot of a writable root needs the image that it was made with: leave image out",
        )


def with_room(limits: Limits, snapshot: Snapshot, asked: Container[str]) -> Limits:
    """Returns the limits with a disk that is at least as large as the snapshot's; InvalidRequest if the caller has
    asked for a smaller one."""
    if limits.disk_mb >= snapshot.disk_mb:
        return limits
    if "disk_mb" in asked:
        raise InvalidRequest(
            f"the disk of the snapshot {snapshot.id} has {snapshot.disk_mb} MiB, {limits.disk_mb} were asked for",
            remedy=f"ask for at least that: disk_mb {snapshot.disk_mb}, or leave it out",
        )
    return replace(limits, disk_mb=snapshot.disk_mb)


def _plain(image: str) -> str:
    return reference_in(image) or image
