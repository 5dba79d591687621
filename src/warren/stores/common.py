"""Decisions that all stores share: pure functions of values that the store has read."""

from collections import Counter
from collections.abc import Iterable
from typing import Final

from warren.interfaces.store import SHORT_ANSWER, Caps, Held, Key, KeyLimits, Page
from warren.model.errors import KeyReused, QuotaExceeded
from warren.model.session import FAILED_CREATIONS, Session

EVICTED_AT_ONCE: Final = 1000
_CAPPED: Final = {
    "sessions": "sessions",
    "disk_mb": "MB of disk",
    "gpus": "GPUs",
    "paused_sessions": "paused sessions",
}


class KeySums:
    """How many claimed keys the tenants have, and the total length of the answers to them."""

    def __init__(self, sums: Iterable[tuple[str, int, int]] = ()) -> None:
        self._keys: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()
        self._all_keys = self._all_bytes = 0
        for tenant, keys, size in sums:
            self.add(tenant, keys, size)

    def add(self, tenant: str, keys: int, size: int) -> None:
        for counter, amount in ((self._keys, keys), (self._bytes, size)):
            counter[tenant] += amount
            if counter[tenant] <= 0:
                del counter[tenant]
        self._all_keys += keys
        self._all_bytes += size

    def check_new(self, tenant: str, limits: KeyLimits) -> None:
        check_keys(self._keys[tenant], self._all_keys, limits)

    def excess(self, tenant: str, size: int, limits: KeyLimits) -> int:
        """Returns by how many bytes the answers would exceed a limit with `size` more."""
        return max(
            self._bytes[tenant] + size - limits.answer_bytes, self._all_bytes + size - limits.all_answer_bytes, 0
        )


def counted_size(answer: str) -> int:
    return len(answer) if len(answer) > SHORT_ANSWER else 0


def check_keys(of_tenant: int, of_all: int, limits: KeyLimits) -> None:
    """Raises QuotaExceeded if one more key is too many."""
    for number, most, whose in ((of_tenant, limits.keys, "this tenant has"), (of_all, limits.all_keys, "there are")):
        if number >= most:
            raise QuotaExceeded(
                f"{whose} {number} Idempotency-Keys that are remembered, and no more are",
                remedy="send requests without a key, or wait: a key is forgotten after a day",
                retry_after_s=60,
            )


def check_fingerprint(same: bool, key: Key) -> None:
    if not same:
        raise KeyReused(
            f"the Idempotency-Key {key.key!r} was used before, for another request",
            remedy="use a new key for every new request",
        )


def takes(session: Session | None) -> Held:
    """Returns what one session takes up of the caps."""
    if session is None or not session.state.is_counted:
        return Held(0, 0)
    paused = int(session.state.is_paused)
    return Held(1 - paused, session.disk_mb, len(session.gpus), paused)


def takes_more(session: Session, before: Session | None) -> Held:
    """Returns what a change takes up beyond what the session, None for a new one, took up before."""
    return Held(*(after - then for after, then in zip(takes(session), takes(before), strict=True)))


def check_caps(caps: Caps, more: Held, held: Held, held_by_key: Held) -> None:
    """Raises QuotaExceeded if something of `more` is too much for what the tenant and the key already hold."""
    for whose, prefix, has in (("tenant", "", held), ("key", "key_", held_by_key)):
        for name, what in _CAPPED.items():
            most, added = getattr(caps, prefix + name), getattr(more, name)
            value = getattr(has, name) + added
            if most is not None and added > 0 and value > most:
                raise QuotaExceeded(
                    f"this {whose} may hold {most} {what} at once, and this would make {value}",
                    remedy="end a session that is not needed any more, or ask the operator for more",
                    retry_after_s=5,
                )


def frees_key(session: Session | None) -> bool:
    """Returns whether the session's creation failed, so that its Idempotency-Key may be used again."""
    return session is not None and session.reason in FAILED_CREATIONS


def end_time(session: Session) -> float | None:
    """Returns when the session ended; None while it is active. An ended session always has a time, or it would never be
    purged."""
    if session.active:
        return None
    return session.used if session.ended is None else session.ended


def columns_of(session: Session) -> tuple[str | int | float | None, ...]:
    """Returns what stores keep beside the session's JSON, to find it by: from its id to its disk."""
    moments = session.version, float(session.created_at), float(session.deadline), session.epoch, end_time(session)
    names = session.id, session.tenant, session.thread_id, session.state, session.environment
    return *names, *moments, session.key_id, session.disk_mb


def list_position(session: Session) -> tuple[float, str]:
    """Returns the sort key of a tenant's sessions, oldest first. It never changes."""
    return session.created_at, session.id


def matches_page(page: Page, session: Session) -> bool:
    """Returns whether the session matches the filters of the page."""
    return (
        session.state in page.states
        and page.thread_id in ("", session.thread_id)
        and page.environment in ("", session.environment)
        and page.provider in ("", session.provider)
        and page.worker in ("", session.worker)
        and page.metadata.items() <= session.metadata.items()
        and (not page.search or _contains(session, page.search.casefold()))
    )


def _contains(session: Session, text: str) -> bool:
    metadata = session.metadata
    return any(text in one.casefold() for one in (session.id, session.thread_id, *metadata, *metadata.values()))
