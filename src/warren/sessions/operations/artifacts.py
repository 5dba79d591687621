"""Artifacts: saves files of a session, lists what was saved, reads and deletes it. They outlive their session."""

from collections.abc import AsyncGenerator
from typing import Annotated, Final
from urllib.parse import quote

from pydantic import BaseModel, Field

from warren.model.artifact import MAX_PATTERNS, Artifact, SaveResult
from warren.model.session import MAX_THREAD_ID
from warren.sessions.artifact_files import check_paths
from warren.sessions.operations.artifact_saving import save_artifacts
from warren.sessions.operations.call import BytesHead, Call, Handler, Values
from warren.sessions.operations.files import BYTES
from warren.sessions.schemas import ArtifactView, Body, SavedView, artifact_view, saved_view


class ArtifactPage(BaseModel):
    artifacts: list[ArtifactView]
    next: str | None = Field(description="Give it as `after` to get the next page")


class SaveBody(Body):
    paths: list[str] = Field(
        description="Files, directories (all files below them) and globs (`*.png`, `out/**/*.csv`); relative ones "
        "start in /workspace",
        examples=[["*.png", "out/report.pdf"]],
        min_length=1,
        max_length=MAX_PATTERNS,
    )


class ArtifactsQuery(BaseModel):
    session_id: str = Field("", max_length=255, description="Only those of this session, which may have ended")
    thread_id: str = Field("", max_length=MAX_THREAD_ID, description="Only those of this thread")
    name: str = Field("", max_length=1024, description="Only those whose name fits: a glob", examples=["*.png"])
    after: str = Field("", max_length=255, description="`next` of the page before")
    limit: Annotated[int, Field(ge=1, le=1000, description="So many at most")] = 100


async def save(call: Call, body: SaveBody) -> Values:
    """They are kept when this answers. A file whose content was saved under the same name before is not saved twice.

    Links are not followed. What could not be saved is in `left_out`, with the reason.
    """
    check_paths(body.paths)
    return show_saved(call, await save_artifacts(call, body.paths))


async def list_artifacts(call: Call, query: ArtifactsQuery) -> Values:
    """Newest first. A page may have fewer than `limit` although there are more: `next` says so."""
    found, more = await call.artifacts.records.list(call.tenant, **query.model_dump())
    return {"artifacts": [show(call, artifact) for artifact in found], "next": more}


async def get_artifact(call: Call) -> Values:
    return show(call, await call.artifacts.records.get(call.tenant, call.artifact_id))


async def read_artifact(call: Call) -> AsyncGenerator[BytesHead | bytes, None]:
    """The bytes, or the part that `Range` asks for. A browser saves them and shows nothing; `ETag` is the SHA-256."""
    artifact = await call.artifacts.records.get(call.tenant, call.artifact_id)
    start, end = (0, None) if call.byte_range is None else call.byte_range.within(artifact.size)
    source = call.artifacts.read(artifact, start, artifact.size if end is None else max(start, end))
    try:
        first = await anext(source, b"")  # raises what is wrong with the content before the answer begins
        yield BytesHead(artifact.size, start, end, _headers(artifact), artifact.sent_as)
        yield first
        async for part in source:
            yield part
    finally:
        await source.aclose()


async def delete_artifact(call: Call) -> None:
    await call.artifacts.delete(call.tenant, call.artifact_id)


def show(call: Call, artifact: Artifact) -> Values:
    return artifact_view(artifact, call.base_url())


def show_saved(call: Call, saved: SaveResult) -> Values:
    return saved_view(saved, call.base_url())


def _headers(artifact: Artifact) -> dict[str, str]:
    """The headers with which a browser does not show the content as a page of this server's origin, whatever it is."""
    name = artifact.name.rsplit("/", 1)[-1]
    plain = "".join(letter if letter.isascii() and letter.isprintable() else "_" for letter in name)
    plain = plain.replace("\\", "_").replace('"', "_")
    exact = quote(name.encode(errors="surrogateescape"), safe="")
    return {
        "ETag": f'"{artifact.sha256}"',
        "Content-Disposition": f"attachment; filename=\"{plain}\"; filename*=UTF-8''{exact}",
        "X-Content-Type-Options": "nosniff",
        "Content-Security-Policy": "sandbox; default-src 'none'",
    }


HANDLERS: Final = (
    Handler("save_artifacts", save, body=SaveBody, result=SavedView),
    Handler("list_artifacts", list_artifacts, query=ArtifactsQuery, result=ArtifactPage),
    Handler("get_artifact", get_artifact, result=ArtifactView),
    Handler(
        "read_artifact",
        stream=read_artifact,
        headers=("range",),
        other_results={
            200: {"description": "The artifact", "content": BYTES},
            206: {"description": "The part asked for", "content": BYTES},
        },
    ),
    Handler("delete_artifact", delete_artifact),
)
