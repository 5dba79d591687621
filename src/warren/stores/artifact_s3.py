"""Contents of artifacts or snapshots as objects of an S3-compatible service: PREFIX/TENANT/ID, by the client `obstore`.

An object appears whole or not at all; a large one is sent in parts. Parts that a crash has left are invisible; a
lifecycle rule of the bucket should remove incomplete uploads. Credentials come from the usual places of S3 clients:
AWS_ variables, or the machine.
"""

import hashlib
from collections.abc import AsyncGenerator, AsyncIterable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from warren.interfaces.artifacts import ARTIFACTS, Content, ContentKind, KeptContent
from warren.kernel.shielding import run_shielded
from warren.model.errors import InvalidRequest, NotFound, Unavailable

if TYPE_CHECKING:
    from obstore.store import S3Store

_PIECE: Final = 1024 * 1024
_PART: Final = 8 * 1024 * 1024
_TIMEOUT: Final = timedelta(seconds=60)


def open_s3(url: str, endpoint: str = "", kind: ContentKind = ARTIFACTS) -> "S3Artifacts":
    """Opens the store. `url` is s3://BUCKET or s3://BUCKET/PREFIX; `endpoint` is the address of a service other than
    Amazon's. Raises InvalidRequest if obstore is not installed."""
    try:
        from obstore.store import S3Store
    except ImportError as exc:
        raise InvalidRequest(
            f"{kind.name}s in S3 need the package obstore", remedy="install it: pip install 'warren-sandbox[s3]'"
        ) from exc
    place = urlsplit(url)
    options: dict[str, Any] = {"endpoint": endpoint, "virtual_hosted_style_request": False} if endpoint else {}
    store = S3Store(
        place.netloc,
        prefix=place.path.strip("/") or None,
        client_options={"allow_http": endpoint.startswith("http://"), "timeout": _TIMEOUT},
        retry_config={"max_retries": 3, "retry_timeout": _TIMEOUT},
        **options,
    )
    return S3Artifacts(store, kind)


class S3Artifacts:
    shared: Final = True

    def __init__(self, store: "S3Store", kind: ContentKind = ARTIFACTS) -> None:
        import obstore
        from obstore.exceptions import BaseError, NotFoundError

        self._store, self._client, self._kind = store, obstore, kind
        self._error, self._not_found = BaseError, NotFoundError

    def __repr__(self) -> str:
        return f"<S3Artifacts {self._store!r}>"

    async def put(self, tenant: str, artifact_id: str, data: AsyncIterable[bytes]) -> Content:
        found, size, hashed = self._key(tenant, artifact_id), 0, hashlib.sha256()
        failure: list[Exception] = []

        async def pieces() -> AsyncGenerator[bytes, None]:
            nonlocal size
            buffer = bytearray()
            try:
                async for part in data:
                    hashed.update(part)
                    size += len(part)
                    buffer += part
                    if len(buffer) >= _PIECE:
                        yield bytes(buffer)
                        buffer.clear()
            except Exception as exc:
                failure.append(exc)
                raise
            yield bytes(buffer)

        try:
            await self._client.put_async(self._store, found, pieces(), chunk_size=_PART)
        except BaseException as exc:
            await run_shielded(self._undo(found))
            if failure:
                raise failure[0] from None
            if isinstance(exc, self._error):
                raise self._away(exc) from exc
            raise
        return Content(size, hashed.hexdigest())

    async def _undo(self, key: str) -> None:
        try:
            await self._client.delete_async(self._store, key)
        except self._error:
            return  # without a record the object is removed later

    async def read(self, tenant: str, artifact_id: str, start: int, end: int) -> AsyncGenerator[bytes, None]:
        key = self._key(tenant, artifact_id)
        try:
            if start >= end:
                await self._client.head_async(self._store, key)
                return
            found = await self._client.get_async(self._store, key, options={"range": (start, end)})
            async for part in found.stream(min_chunk_size=_PIECE):
                yield bytes(part)
        except (self._not_found, FileNotFoundError) as exc:
            raise NotFound(f"the content of the {self._kind.name} is gone") from exc
        except self._error as exc:
            raise self._away(exc) from exc

    async def delete(self, tenant: str, artifact_id: str) -> None:
        try:
            await self._client.delete_async(self._store, self._key(tenant, artifact_id))
        except (self._not_found, FileNotFoundError):
            return
        except self._error as exc:
            raise self._away(exc) from exc

    async def list(self) -> AsyncGenerator[KeptContent, None]:
        try:
            async for some in self._client.list(self._store):
                for one in some:
                    tenant, _, artifact_id = one["path"].rpartition("/")
                    if tenant and "/" not in tenant and self._kind.is_id(artifact_id):
                        yield KeptContent(tenant, artifact_id, one["last_modified"].timestamp())
        except self._error as exc:
            raise self._away(exc) from exc

    async def close(self) -> None:
        return None

    def _key(self, tenant: str, content_id: str) -> str:
        assert self._kind.is_id(content_id), content_id
        return f"{tenant}/{content_id}"

    def _away(self, exc: BaseException) -> Unavailable:
        """Returns the error for the caller. The client's own words may name addresses and keys of the service, so they
        only go to the log."""
        return Unavailable(
            f"the store of the {self._kind.name}s did not answer properly ({type(exc).__name__})",
            remedy=f"try again; if it stays so, the operator sees why: `{self._kind.option}` in the settings",
            retry_after_s=5,
        )
