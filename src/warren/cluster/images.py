"""Copies images between the workers of a cluster.

A worker reports the images that others may copy, by name with the digest of the content. A worker that lacks an image
asks a coordinator, which passes on what a worker with that image sends: the files as a tar, and in a header what the
image says about itself. Workers need no connection to each other. The receiver checks the digest of everything that
arrived before it points the name to the new version, so a transfer that breaks off changes nothing.

    worker that lacks it     ImageFetcher.fetch
    coordinator              pass_on
    worker that has it       send_image
"""

import asyncio
import base64
import contextlib
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import IO, Any, Final, cast
from urllib.parse import parse_qs, urlencode

from starlette.types import Scope, Send

from warren.cluster.auth import ClusterAuth
from warren.cluster.fleet import Fleet
from warren.cluster.roster import Member, Peer
from warren.http.client.client import WorkerClient, WorkerResponse
from warren.http.client.errors import Broken, ForwardingFailed, Unreachable
from warren.interfaces.images import ImageOffer, SharedImages
from warren.kernel.logs import get_log
from warren.kernel.thread_streams import ThreadReader, ThreadWriter
from warren.model.errors import ImageNotFound, InvalidRequest, Unavailable, WarrenError
from warren.model.tenant_images import owner_of, pulled_for

IMAGE_PATH: Final = "/internal/image"
_OFFER: Final = b"x-warren-image"
_PIECE: Final = 1024 * 1024
_HEAD_TIMEOUT_S: Final = 30.0
_MAX_PROBLEM: Final = 64 * 1024
_REFRESH_S: Final = 5.0
_MAX_OFFERED: Final = 256  # bounds the size of a heartbeat, which names them all

_log = get_log(__name__)


class OfferedImages:
    """The images of this worker that others may copy, refreshed every few seconds in a thread."""

    def __init__(self, images: SharedImages) -> None:
        self._images = images
        self._offers: dict[str, ImageOffer] = {}

    @property
    def contents(self) -> Mapping[str, str]:
        return {name: offer.content for name, offer in self._offers.items()}

    def offer(self, name: str) -> ImageOffer:
        try:
            return self._offers[name]
        except KeyError:
            raise ImageNotFound(f"this worker has no image {name!r} to give away") from None

    async def refresh(self) -> None:
        offers = sorted(await asyncio.to_thread(self._images.offers), key=_rank)
        self._offers = {offer.name: offer for offer in offers[:_MAX_OFFERED]}

    async def run(self) -> None:
        while True:
            try:
                await self.refresh()
            except (WarrenError, OSError) as exc:
                _log.warning("images_not_listed", error=exc)
            await asyncio.sleep(_REFRESH_S)


def _rank(offer: ImageOffer) -> tuple[bool, bool, str]:
    """Images of tenants come after those that everybody needs, and those last that can be pulled again."""
    return bool(pulled_for(offer.name)), bool(owner_of(offer.name)), offer.name


async def send_image(images: SharedImages, offered: OfferedImages, scope: Scope, send: Send) -> None:
    """Answers IMAGE_PATH on a worker."""
    offer = offered.offer(_name_in(scope))
    await send({"type": "http.response.start", "status": 200, "headers": [(_OFFER, _encode(offer))]})

    async def send_part(part: bytes) -> None:
        await send({"type": "http.response.body", "body": part, "more_body": True})

    def write() -> None:
        with io.BufferedWriter(writer, _PIECE) as out:
            images.send(offer, cast(IO[bytes], out))

    writer = ThreadWriter(send_part)
    try:
        await asyncio.to_thread(write)
    finally:
        writer.give_up()  # if we were cancelled, the thread still writes: its next write fails and ends it
    await send({"type": "http.response.body", "body": b""})


async def pass_on(fleet: Fleet, client: WorkerClient, auth: ClusterAuth, scope: Scope, send: Send) -> None:
    """Answers IMAGE_PATH on a coordinator with what a worker that has the image sends."""
    name = _name_in(scope)
    for member in _members_with_image(name, fleet):
        with contextlib.suppress(Unreachable):
            async with _ask(client, auth, member.address, name) as response:
                if response.status != 200:
                    continue
                headers = [(_OFFER, response.header(_OFFER) or b"")]
                await send({"type": "http.response.start", "status": 200, "headers": headers})
                while part := await response.read():
                    await send({"type": "http.response.body", "body": part, "more_body": True})
                await send({"type": "http.response.body", "body": b""})
                return
    raise ImageNotFound(f"no worker of this cluster has the image {name!r}")


def _members_with_image(name: str, fleet: Fleet) -> Sequence[Member]:
    """Returns the live workers that offer the image, the least busy first."""
    found = [member for member in fleet.members.values() if member.alive and name in member.report.images]
    return sorted(found, key=lambda member: member.report.pressure)


class ImageFetcher:
    """Gets images for a worker. `coordinators` returns the coordinators that it knows."""

    def __init__(
        self, images: SharedImages, client: WorkerClient, auth: ClusterAuth, coordinators: Callable[[], Sequence[Peer]]
    ) -> None:
        self._images, self._client, self._auth, self._coordinators = images, client, auth, coordinators

    async def fetch(self, name: str, progress: Callable[[int, int], None] = lambda done, total: None) -> bool:
        """Copies an image from another worker; returns False if no worker has it. Raises Unavailable if no coordinator
        could be asked, or the transfer failed. `progress` is called with the bytes that have arrived, and the bytes in
        all."""
        failure: WarrenError = Unavailable("this worker knows no coordinator to ask for the image")
        for peer in self._coordinators():
            try:
                return await self._fetch_through(peer, name, progress)
            except ForwardingFailed as exc:
                failure = Unavailable(f"the image {name!r} could not be copied from another worker: {exc.reason}")
        raise failure

    async def _fetch_through(self, peer: Peer, name: str, progress: Callable[[int, int], None]) -> bool:
        async with _ask(self._client, self._auth, peer.address, name) as response:
            if response.status == ImageNotFound.http_status:
                return False
            offer = _decode(response.header(_OFFER)) if response.status == 200 else None
            if offer is None or offer.name != name:
                text = await response.read_all(_MAX_PROBLEM) if response.status != 200 else b""
                raise Unavailable(f"the image {name!r} could not be had: {_detail(text)}")
            _log.info("image_fetching", image=name, content=offer.content, size_bytes=offer.size_bytes)
            stream = io.BufferedReader(ThreadReader(_Pieces(response, offer, progress).read), _PIECE)
            try:
                await asyncio.to_thread(self._images.receive, offer, cast(IO[bytes], stream))
            except InvalidRequest as exc:
                raise Broken(exc.message) from exc
        _log.info("image_fetched", image=name, content=offer.content)
        return True


class _Pieces:
    """Reads the body of a response in pieces of the requested size."""

    def __init__(self, response: WorkerResponse, offer: ImageOffer, progress: Callable[[int, int], None]) -> None:
        self._response, self._offer, self._progress = response, offer, progress
        self._rest = memoryview(b"")
        self._done = 0

    async def read(self, size: int) -> bytes:
        if not self._rest:
            self._rest = memoryview(await self._response.read())
        part, self._rest = self._rest[:size], self._rest[size:]
        self._done += len(part)
        self._progress(self._done, max(self._done, self._offer.size_bytes))
        return bytes(part)


def _ask(client: WorkerClient, auth: ClusterAuth, address: str, name: str) -> Any:
    headers = [(b"host", address.rpartition("//")[2].encode()), *auth.headers()]
    target = f"{IMAGE_PATH}?{urlencode({'name': name})}".encode()
    return client.request(address, "GET", target, headers, head_timeout_s=_HEAD_TIMEOUT_S)


def _name_in(scope: Scope) -> str:
    try:
        names: list[str] = parse_qs(scope["query_string"].decode("latin-1"))["name"]
    except KeyError as exc:
        raise InvalidRequest("the query must name the image by `name`") from exc
    return names[0]


def _encode(offer: ImageOffer) -> bytes:
    return base64.b64encode(json.dumps(asdict(offer)).encode())


def _decode(header: bytes | None) -> ImageOffer | None:
    try:
        return ImageOffer(**json.loads(base64.b64decode(header or b"", validate=True)))
    except (ValueError, TypeError):
        return None


def _detail(text: bytes) -> str:
    try:
        return str(json.loads(text)["detail"])
    except (ValueError, KeyError, TypeError):
        return "it is not said why"
