"""Sessions and keys for the tests of the stores."""

from typing import Any

from warren.interfaces.store import Added, Key, SessionStore
from warren.model.network import NetworkRules
from warren.model.session import EndReason, OnIdle, Previous, Session, SessionState, new_session_id
from warren.model.spec import Layer, Limits

S = SessionState
EPOCH = "boot-1"
ALL = frozenset(S)
ACTIVE = (S.CREATING, S.RUNNING, S.PAUSED, S.HIBERNATED, S.LOST, S.STOPPING)
STRANGE = ("ünï-çødé 漢字 🐇", 'it\'s "quoted" \\ {,:} %_', "\U0001d11e", "\ud800", "\ud83d\udc07")


def a_session(**values: Any) -> Session:
    known = {
        "tenant": "acme",
        "environment": "base",
        "epoch": EPOCH,
        "created_at": 1e9,
        "started": 100.0,
        "used": 100.0,
    }
    return Session(**{"id": new_session_id(), **known, **values})


def a_full_session() -> Session:
    """Every field has a value that is not its default."""
    return a_session(
        created_at=1_800_000_000.1234567,
        thread_id="t",
        state=S.LOST,
        version=7,
        idle_timeout_s=0.1 + 0.2,
        max_lifetime_s=77.7,
        image="mine",
        limits=Limits(memory_mb=128, cpus=0.25),
        require=frozenset({Layer.SECCOMP, Layer.NO_HOST_ROOT}),
        network=NetworkRules(True, ("python-packages", "*.example.com:443"), ("10.0.0.0/8",)),
        env={"PATH": "/bin", "EMPTY": ""},
        metadata={"name": "value", **{text: text for text in STRANGE}},
        worker="local",
        provider="oci",
        sandbox_id="sb_1",
        pooled=True,
        key_id="key_1",
        disk_mb=77,
        memory_mb=66,
        previous=Previous("ses_before", EndReason.IDLE, "30 min"),
        reason=EndReason.LOST,
        detail="it died",
        ended=123.456,
        gpus=("0", "1"),
        paused_at=111.5,
        paused_s=22.25,
        max_paused_s=3600.0,
        auto_resume=False,
        on_idle=OnIdle.PAUSE,
        on_timeout=OnIdle.HIBERNATE,
        renewal_s=300.0,
        hibernate_after_s=60.0,
        saved="snap_1",
        saved_gpus=2,
        restored=3,
    )


def a_key(name: str = "k", **values: str) -> Key:
    return Key(**{"tenant": "acme", "scope": "create", "key": name, "fingerprint": "one", **values})


async def added(store: SessionStore, key: Key | None = None, **values: Any) -> Session:
    session, which = await store.add(a_session(**values), key)
    assert which is Added.NEW
    return session


async def swapped(store: SessionStore, session: Session, *states: SessionState, **changes: Any) -> Session:
    for state in states:
        session = session.moved_to(state, **changes)
        assert await store.swap(session)
    return session


async def ended(store: SessionStore, session: Session, **changes: Any) -> Session:
    session = await swapped(store, session, S.STOPPING)
    return await swapped(store, session, S.ENDED, **{"reason": EndReason.DELETED, "ended": 200.0, **changes})
