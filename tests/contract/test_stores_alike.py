"""Random operations, done to all stores: they must answer alike."""

import asyncio
import secrets
import tempfile
from collections.abc import Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
import this_run
from contract.store_values import S, a_session
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from redis_server import PATIENCE_S, running_redis

from warren.interfaces.store import Key, Page, SessionStore
from warren.model.errors import WarrenError
from warren.model.session import STATES, EndReason, Session
from warren.stores.memory import MemoryStore
from warren.stores.redis_store import RedisStore
from warren.stores.sqlite import SqliteStore

TENANTS = st.sampled_from(["a", "b"])
THREADS = st.sampled_from(["", "t", "ü", "\ud800"])
EPOCHS = st.sampled_from(["boot-0", "boot-1", "boot-2"])
TIMES = st.integers(0, 20).map(float)
METADATA = st.dictionaries(st.sampled_from(["a", 'b"', ":"]), st.sampled_from(["1", ",", '"']), max_size=2)
KEYS = st.builds(
    Key, TENANTS, st.sampled_from(["create", "ses_1"]), st.sampled_from(["k", "l"]), st.sampled_from(["one", "two"])
)


@pytest.fixture(scope="module", autouse=True)
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with running_redis(tmp_path_factory.mktemp("redis")) as server:
        Stores.redis_url = server.url
        yield


class Stores(RuleBasedStateMachine):
    redis_url: ClassVar = ""

    def __init__(self) -> None:
        super().__init__()
        self._directory = tempfile.TemporaryDirectory(prefix="stores-alike-")
        self._runner = asyncio.Runner()
        self._memory = MemoryStore()
        self._sqlite = self._run(SqliteStore.open(Path(self._directory.name) / "s.db"))
        self._namespace = secrets.token_hex(8)
        self._redis = self._run(self._opened_redis())
        self._known: dict[str, Session] = {}
        self._made = 0

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self._runner.run(work)

    def _opened_redis(self) -> Coroutine[Any, Any, RedisStore]:
        return RedisStore.open(self.redis_url, timeout_s=PATIENCE_S, namespace=self._namespace, step=5)

    def _all(self, method: str, *values: Any) -> Any:
        """What all of them say to it; they must say the same."""
        first, second, third = self._run(_answers((self._memory, self._sqlite, self._redis), method, values))
        assert first == second
        assert first == third
        return first

    @rule(tenant=TENANTS, thread_id=THREADS, epoch=EPOCHS, at=TIMES, metadata=METADATA, key=st.none() | KEYS)
    def add(
        self, tenant: str, thread_id: str, epoch: str, at: float, metadata: dict[str, str], key: Key | None
    ) -> None:
        self._made += 1
        session_id = f"ses_{self._made * 7919 % 1000:03}"  # not in the order they are made in
        values = {"id": session_id, "epoch": epoch, "created_at": at, "started": at, "used": at, "metadata": metadata}
        session = a_session(tenant=tenant if key is None else key.tenant, thread_id=thread_id, **values)
        answer = self._all("add", session, key)
        if isinstance(answer, tuple):
            self._known.setdefault(answer[0].id, answer[0])

    @precondition(lambda self: self._known)
    @rule(data=st.data(), at=TIMES, late=st.booleans())
    def swap(self, data: st.DataObject, at: float, late: bool) -> None:
        session = self._known[data.draw(st.sampled_from(sorted(self._known)))]
        if STATES[session.state].next:
            state = data.draw(st.sampled_from(sorted(STATES[session.state].next)))
            changes: dict[str, Any] = {"used": at}
            if state is S.ENDED:
                changes = {"ended": at, "reason": data.draw(st.sampled_from([EndReason.FAILED, EndReason.IDLE]))}
            changed = session.moved_to(state, **changes)
            if self._all("swap", changed) and not late:
                self._known[session.id] = changed

    @rule(tenant=TENANTS, states=st.frozensets(st.sampled_from(S)), thread_id=THREADS, limit=st.integers(0, 4))
    def list_states(self, tenant: str, states: frozenset[S], thread_id: str, limit: int) -> None:
        self._all("list", tenant, Page(states=states, thread_id=thread_id, limit=limit))

    @precondition(lambda self: self._known)
    @rule(tenant=TENANTS, metadata=METADATA, data=st.data())
    def list_after(self, tenant: str, metadata: dict[str, str], data: st.DataObject) -> None:
        after = data.draw(st.sampled_from(["", *sorted(self._known)]))
        self._all("list", tenant, Page(states=frozenset(S), metadata=metadata, after=after, limit=2))

    @precondition(lambda self: self._known)
    @rule(tenant=TENANTS, data=st.data())
    def get(self, tenant: str, data: st.DataObject) -> None:
        self._all("get", tenant, data.draw(st.sampled_from(sorted(self._known))))

    @rule(now=st.floats(0, 4000), limit=st.integers(0, 3))
    def due(self, now: float, limit: int) -> None:
        self._all("due", now, limit)

    @rule(epoch=EPOCHS, before=TIMES)
    def purge(self, epoch: str, before: float) -> None:
        self._all("purge", epoch, before)

    @rule(key=KEYS, epoch=EPOCHS, now=TIMES)
    def claim_key(self, key: Key, epoch: str, now: float) -> None:
        self._all("claim_key", key, epoch, now)

    @rule(key=KEYS, answer=st.sampled_from(["", "42", "\ud800"]))
    def answer_key(self, key: Key, answer: str) -> None:
        self._all("answer_key", key, answer)

    @rule(key=KEYS)
    def release_key(self, key: Key) -> None:
        self._all("release_key", key)

    @rule()
    def checkpoint(self) -> None:
        self._run(self._sqlite.checkpoint())

    @rule()
    def reopen(self) -> None:
        self._run(self._sqlite.close())
        self._sqlite = self._run(SqliteStore.open(Path(self._directory.name) / "s.db"))
        self._run(self._redis.close())
        self._redis = self._run(self._opened_redis())

    @rule(tenant=TENANTS, thread_id=THREADS)
    def of_thread(self, tenant: str, thread_id: str) -> None:
        self._all("of_thread", tenant, thread_id)

    @invariant()
    def they_hold_the_same(self) -> None:
        self._all("count")
        self._all("active")
        for tenant in ("a", "b"):
            self._all("list", tenant, Page(states=frozenset(S), limit=1000))

    def teardown(self) -> None:
        self._run(self._redis.close())
        self._run(self._sqlite.close())
        self._runner.close()
        self._directory.cleanup()


def _id(session: Session) -> str:
    return session.id


async def _answers(stores: Sequence[SessionStore], method: str, values: tuple[Any, ...]) -> list[Any]:
    return [await _answer(store, method, values) for store in stores]


async def _answer(store: SessionStore, method: str, values: tuple[Any, ...]) -> Any:
    try:
        answer = await getattr(store, method)(*values)
    except WarrenError as exc:
        return type(exc)
    if method == "active":
        return sorted(answer, key=_id)
    return list(answer) if method in ("list", "due") else answer


TestStoresAlike = Stores.TestCase
TestStoresAlike.settings = settings(
    max_examples=this_run.examples(30),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
