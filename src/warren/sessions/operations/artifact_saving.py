"""Saves artifacts of the session that a call is about."""

from collections.abc import Sequence

from warren.model.artifact import Artifact, LeftOut, SaveResult, check_patterns
from warren.model.errors import WarrenError
from warren.sessions.operations.call import Call


async def save_artifacts(call: Call, paths: Sequence[str]) -> SaveResult:
    """Saves the files of the call's session that these paths and globs name; nothing if there are none."""
    if not paths:
        return SaveResult()
    check_patterns(paths)
    async with call.sessions.using(call.tenant, call.session_id) as (session, sandbox):
        return await call.artifacts.save(session, sandbox, paths)


async def save_after(call: Call, paths: Sequence[str]) -> SaveResult:
    """Does what `save_artifacts` does, after a command whose result must not get lost: reports an error as left out."""
    try:
        return await save_artifacts(call, paths)
    except WarrenError as exc:
        return SaveResult(left_out=(LeftOut("", str(exc)),), left_out_count=1)


async def store_bytes(call: Call, name: str, mime: str, data: bytes) -> Artifact:
    """Saves bytes that the server has as an artifact of the call's session, such as a picture that code has drawn."""
    session = await call.sessions.get(call.tenant, call.session_id)
    return await call.artifacts.save_bytes(session, name, mime, data)
