"""Compares what a request for a thread names with what the thread's session has. Pure; `Sessions.create` calls it.

Only what a request names is a wish: its environment, image, provider, limits (each for itself) and gpus, and the
environment and limits of the agent that it is for. Nothing else is compared: network, secrets, variables, metadata and
time-outs can be changed while a session runs or concern it alone, and `require` holds for new sandboxes.
"""

from collections.abc import Iterator

from warren.model.errors import InvalidRequest, SessionMismatch
from warren.model.gpus import ANY
from warren.model.image_reference import is_image_reference, read_reference
from warren.model.mismatch import Mismatch, describe
from warren.model.session import Session
from warren.model.spec import Limits
from warren.model.tenant_images import reference_in
from warren.sessions.new_session import NewSession


def find_mismatch(session: Session, wished: NewSession, image: str, limits: Limits) -> Mismatch:
    """`wished` is completed by its agent and names an image as its image (`NewRows.complete`). `image` and `limits` are
    those in force in the session."""
    return {name: {"has": has, "asked": asked} for name, has, asked in _differences(session, wished, image, limits)}


def _differences(
    session: Session, wished: NewSession, image: str, limits: Limits
) -> Iterator[tuple[str, object, object]]:
    if wished.environment and wished.environment != session.environment:
        yield "environment", session.environment, wished.environment
    if wished.image and not is_same_image(wished.image, image):
        yield "image", reference_in(image) or image, reference_in(wished.image) or wished.image
    if wished.provider and wished.provider != session.provider:
        yield "provider", session.provider, wished.provider
    for name, asked in wished.limits.items():
        if (has := getattr(limits, name)) != asked:
            yield f"limits.{name}", has, asked
    if wished.gpus is not None and not _has_gpus(session.gpus, wished.gpus):
        yield "gpus", list(session.gpus), list(wished.gpus)


def is_same_image(one: str, other: str) -> bool:
    """Whether two names mean one image: one may be the name under which it was pulled for the tenant, or leave out what
    goes without saying (`python:3.12` is `docker.io/library/python:3.12`)."""
    one, other = reference_in(one) or one, reference_in(other) or other
    if one == other or not (is_image_reference(one) and is_image_reference(other)):
        return one == other
    try:
        return read_reference(one) == read_reference(other)
    except InvalidRequest:
        return False


def _has_gpus(has: tuple[str, ...], asked: tuple[str, ...]) -> bool:
    """A processor has several names that only its worker knows, so only numbers are compared with numbers."""
    named = {each for each in asked if each != ANY}
    comparable = all(each.isdecimal() for each in (*has, *named))
    return len(has) == len(asked) and (not comparable or named <= set(has))


def mismatch_error(session: Session, mismatch: Mismatch) -> SessionMismatch:
    return SessionMismatch(
        f"the thread {session.thread_id!r} has the session {session.id} with {describe(mismatch)}",
        remedy="on_mismatch says what to do: `keep` goes on in that session, `replace` ends it and makes a new one; or "
        "use another thread_id",
        mismatch=mismatch,
    )
