"""Snapshots: saves disks of sessions, lists, shows, deletes, downloads and uploads them, and forks sessions."""

from collections.abc import AsyncGenerator, AsyncIterable
from contextlib import aclosing
from typing import Annotated, Final

from pydantic import BaseModel, Field

from warren.model.access import Scope
from warren.model.errors import Conflict, Forbidden
from warren.model.session import MAX_LABELS, MAX_THREAD_ID, check_metadata
from warren.model.snapshot import MAX_FORKS, MAX_NAME, Snapshot, SnapshotOwner, SnapshotWish, check_snapshot_name
from warren.model.spec import WORKSPACE
from warren.model.tenant_images import reference_in
from warren.sessions.operations.call import BytesHead, Call, Handler, OperationReply, Values
from warren.sessions.operations.files import BYTES
from warren.sessions.operations.sessions import show as show_session
from warren.sessions.request_context import current_caller, note
from warren.sessions.schemas import Body, SessionView, timestamp
from warren.sessions.snapshots import forks, transfer

_LONGEST_S: Final = 10 * 366 * 86400.0
Expiry = Annotated[float, Field(ge=0, le=_LONGEST_S, allow_inf_nan=False)]


class SnapshotBody(Body):
    name: str = Field(
        "",
        max_length=MAX_NAME,
        description="A name to find it by. If another snapshot has it, the name moves to the new one",
        examples=["ready"],
    )
    expires_in_s: Expiry | None = Field(
        None, description="Deleted after so long; 0: never. By default as the server is set, 30 days"
    )
    metadata: dict[str, str] = Field({}, description="Labels of your own")
    public: bool = Field(
        False, description="Sessions of every tenant may start from it, by its name; needs the scope admin"
    )


class ForkBody(Body):
    count: Annotated[int, Field(ge=1, le=MAX_FORKS, description="How many sessions", examples=[3])] = 1
    thread_ids: list[Annotated[str, Field(min_length=1, max_length=MAX_THREAD_ID)]] = Field(
        [], description="A thread for each, that has no session; by default none has one", max_length=MAX_FORKS
    )
    metadata: dict[str, str] = Field({}, description="Added to that of the session")


class SnapshotsQuery(BaseModel):
    session_id: str = Field("", max_length=255, description="Only those of this session, which may have ended")
    hidden: bool = Field(False, description="Also those that sessions have left that gave their sandbox back")
    after: str = Field("", max_length=255, description="`next` of the page before")
    limit: Annotated[int, Field(ge=1, le=1000, description="So many at most")] = 100


class UploadQuery(BaseModel):
    name: str = Field("", max_length=MAX_NAME, description="Its name; of a download by default the one it had")
    expires_in_s: Expiry | None = Field(None, description="Deleted after so long; 0: never")
    environment: str = Field("", max_length=255, description="Of a tar: the environment it is for")
    image: str = Field("", max_length=1024, description="Of a tar: an image other than the environment's")
    disk_mb: int | None = Field(None, ge=1, description="Of a tar: the size of its disk in MiB")
    path: str = Field(WORKSPACE, max_length=4096, description="Of a tar: where it is unpacked")


class SnapshotView(BaseModel):
    snapshot_id: str
    name: str | None = Field(description="Null if it never had one, or if the name has moved on")
    environment: str
    image: str = Field(description="The one that its session had")
    provider: str
    writable_root: bool = Field(description="Whether it has all files; else those of the workspace and home")
    disk_mb: int = Field(description="Sessions that start from it have a disk at least as large")
    bytes: int = Field(description="What it occupies")
    sha256: str = Field(description="Of its contents")
    stopped_ms: float = Field(description="How long its session stood still for it")
    session_id: str | None
    thread_id: str | None
    parent: str | None = Field(description="The snapshot that its session started from, which may be deleted")
    worker: str | None = Field(description="The machine that keeps it; null if all reach it")
    owner: str = Field(description="`user`, or `session`: left by one that gave its sandbox back")
    public: bool
    metadata: dict[str, str]
    created_at: str
    expires_at: str | None
    url: str = Field(description="Where it is downloaded")


class SnapshotPage(BaseModel):
    snapshots: list[SnapshotView]
    next: str | None = Field(description="Give it as `after` to get the next page")


class ForkError(BaseModel):
    number: int = Field(description="Of the session that could not be made, from 0 on")
    code: str
    detail: str
    remedy: str


class ForkView(BaseModel):
    sessions: list[SessionView]
    errors: list[ForkError]
    carried: str = Field(description="What the new sessions have of the old one: `files`; no processes, no memory")


async def create_snapshot(call: Call, body: SnapshotBody | None) -> OperationReply:
    """The session stands still only while its disk is copied, and goes on; a paused one stays paused.

    Files are saved, and what programs have written so far; processes and memory are not. Sessions start from it by
    `snapshot` in POST /api/sessions.
    """
    body = body or SnapshotBody()
    note(session_id=call.session_id, **({"name": body.name} if body.name else {}))
    metadata = check_metadata(dict(body.metadata), MAX_LABELS)
    wish = SnapshotWish(_checked(body.name), body.expires_in_s, metadata, body.public)
    if body.public:
        if not current_caller().may(Scope.ADMIN):
            raise Forbidden("only operators make public snapshots", remedy="leave public out")
        check_snapshot_name(body.name)
    saved = await forks.save(call.sessions, call.snapshots, call.tenant, call.session_id, wish)
    view = show(call, saved)
    note(snapshot=saved.id)
    return OperationReply(view, 201, {"Location": view["url"].removesuffix("/content")})


async def list_snapshots(call: Call, query: SnapshotsQuery) -> Values:
    """Newest first. A page may have fewer than `limit` although there are more: `next` says so."""
    found, more = await call.snapshots.records.list(call.tenant, **query.model_dump())
    return {"snapshots": [show(call, snapshot) for snapshot in found], "next": more}


async def get_snapshot(call: Call) -> Values:
    return show(call, await call.snapshots.records.get(call.tenant, call.snapshot))


async def delete_snapshot(call: Call) -> None:
    """Sessions that started from it have copies, and go on. What a session has left that gave its sandbox back is the
    session's: end that instead."""
    note(snapshot=call.snapshot)
    snapshot = await call.snapshots.records.get(call.tenant, call.snapshot)
    if snapshot.owner is SnapshotOwner.SESSION:
        session = await call.sessions.store.get(call.tenant, snapshot.session_id)
        if session is not None and session.active and session.saved == snapshot.id:
            raise Conflict(f"the session {session.id} goes on from this snapshot", remedy="end the session instead")
    await call.snapshots.remove(snapshot, "deleted")


async def read_snapshot(call: Call) -> AsyncGenerator[BytesHead | bytes, None]:
    """A file that this installation, and no other, takes back: PUT /api/snapshots. It is signed, not encrypted."""
    note(snapshot=call.snapshot)
    snapshot = await call.snapshots.records.get(call.tenant, call.snapshot)
    name = f"{snapshot.name or snapshot.id}.warren-snapshot"
    headers = {"Content-Disposition": f'attachment; filename="{name}"', "X-Content-Type-Options": "nosniff"}
    async with aclosing(transfer.download(call.snapshots, snapshot)) as source:
        first, second = await anext(source), await anext(source)  # raises what is wrong with the content
        yield BytesHead(headers=headers)
        yield first
        yield second
        async for part in source:
            yield part


async def upload_snapshot(call: Call, query: UploadQuery, data: bytes | AsyncIterable[bytes]) -> Values:
    """The body is what a download gave, or a tar, also one that gzip or zstd has compressed.

    A tar is unpacked in a fresh sandbox, with the rights of its user, under the limits and quotas of a session; that
    sandbox is gone afterwards. So a tar needs the scope sessions, too.
    """
    wish = SnapshotWish(_checked(query.name), query.expires_in_s)
    asked = transfer.Upload(wish, query.environment, query.image, query.disk_mb, query.path)
    saved = await transfer.upload(call.sessions, call.snapshots, call.tenant, asked, data)
    note(snapshot=saved.id)
    return show(call, saved)


async def fork_session(call: Call, body: ForkBody | None) -> OperationReply:
    """Each has a copy of the session's files as they were at one moment, and lives for itself from then on.

    Environment, image, limits, variables, network, agent, time-outs, `on_idle` and `logs` are those of the session;
    processes, memory, thread, volumes, links to previews and artifacts are not carried. Quotas apply to each: what
    could not be made is in `errors`. If none could, the answer is the first error.
    """
    body = body or ForkBody()
    asked = forks.Fork(body.count, tuple(body.thread_ids), check_metadata(dict(body.metadata)))
    result = await forks.fork(call.sessions, call.snapshots, call.tenant, call.session_id, asked, call.key)
    errors = [
        {"number": number, "code": exc.code, "detail": exc.message, "remedy": exc.remedy}
        for number, exc in sorted(result.errors.items())
    ]
    shown = [show_session(call, session) for session in result.sessions]
    headers = {"Idempotency-Replayed": "true"} if result.replayed else {}
    return OperationReply({"sessions": shown, "errors": errors, "carried": "files"}, 201, headers)


def _checked(name: str) -> str:
    return check_snapshot_name(name) if name else ""


def show(call: Call, snapshot: Snapshot) -> Values:
    return {
        "snapshot_id": snapshot.id,
        "name": snapshot.name or None,
        "environment": snapshot.environment,
        "image": reference_in(snapshot.image) or snapshot.image,
        "provider": snapshot.provider,
        "writable_root": snapshot.writable_root,
        "disk_mb": snapshot.disk_mb,
        "bytes": snapshot.bytes,
        "sha256": snapshot.sha256,
        "stopped_ms": round(snapshot.stopped_s * 1000, 1),
        "session_id": snapshot.session_id or None,
        "thread_id": snapshot.thread_id or None,
        "parent": snapshot.parent or None,
        "worker": snapshot.place or None,
        "owner": str(snapshot.owner),
        "public": snapshot.public,
        "metadata": snapshot.metadata,
        "created_at": timestamp(snapshot.created_at),
        "expires_at": None if snapshot.expires_at is None else timestamp(snapshot.expires_at),
        "url": f"{call.base_url()}api/snapshots/{snapshot.id}/content",
    }


HANDLERS: Final = (
    Handler("create_snapshot", create_snapshot, body=SnapshotBody, result=SnapshotView),
    Handler("list_snapshots", list_snapshots, query=SnapshotsQuery, result=SnapshotPage),
    Handler("get_snapshot", get_snapshot, result=SnapshotView),
    Handler(
        "read_snapshot",
        stream=read_snapshot,
        other_results={200: {"description": "The file", "content": BYTES}},
    ),
    Handler("upload_snapshot", upload_snapshot, query=UploadQuery, result=SnapshotView, body_schema=BYTES),
    Handler("delete_snapshot", delete_snapshot),
    Handler("fork_session", fork_session, body=ForkBody, result=ForkView, headers=("idempotency_key",)),
)
