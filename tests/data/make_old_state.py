"""Makes a directory like `state-be6c65be` beside this file: the state of a server and of a cluster of another version.

    PYTHONPATH=src:tests python tests/data/make_old_state.py SOURCE DIRECTORY

SOURCE is the folder `src` of a checkout of that version. Its server and its cluster are filled over their API, asked
for everything they have, and killed while one session is being made and another one destroyed. What they have answered
is in `answers.json`, what they left on the disk in the archives next to it. `tests/old_state.py` starts servers of this
version on them.
"""

import asyncio
import json
import shutil
import sys
import tarfile
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from e2e.api_client import Api, until
from machine.webhook_receiver import receiving, saying
from old_state import ADMIN_KEY, CLUSTER_SECRET, REDIS_PASSWORD, WEBHOOK_ADDRESS, WEBHOOK_PORT, environ
from redis_server import RedisServer
from server_process import ServerProcess

from warren.kernel.clock import SystemClock, boot_time

ACME, READER, BETA, REVOKED, ADMIN = "acme", "reader", "beta", "revoked", "admin"
EVERY_STATE = "state=creating&state=running&state=lost&state=stopping&state=ended"
ENV = {"TOKEN": "a test secret", "EMPTY": ""}

# Runs a node whose provider waits while the file HOLD exists, so that it can be killed in between.
HOLDABLE = """
import asyncio, os
from warren.cli.main import main
from warren.testing.fake_provider import FakeProvider

def held(method):
    async def call(self, *args):
        while os.path.exists(os.environ["HOLD"]):
            await asyncio.sleep(0.05)
        return await method(self, *args)
    return call

FakeProvider.create, FakeProvider.destroy = held(FakeProvider.create), held(FakeProvider.destroy)
main()
"""


class Filler:
    """Fills a server over its API, and writes down what it answers."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.keys = {ADMIN: ADMIN_KEY}
        self.secrets: dict[str, str] = {}
        self.replays: list[dict[str, Any]] = []
        self.sessions: dict[str, str] = {}

    async def call(self, who: str, method: str, path: str, body: Any = None, **rest: Any) -> Any:
        async with Api(self.url, {"Authorization": f"Bearer {self.keys[who]}"}) as api:
            return await api.call(method, path, body, **rest)

    async def new_key(self, name: str, **wanted: Any) -> str:
        made = await self.call(ADMIN, "POST", "/api/admin/keys", {"name": name, **wanted}, status=201)
        self.keys[name] = made["key"]
        return str(made["id"])

    async def new_webhook(self, path: str, **wanted: Any) -> str:
        url = f"http://{WEBHOOK_ADDRESS}:{WEBHOOK_PORT}{path}"
        made = await self.call(ACME, "POST", "/api/webhooks", {"url": url, **wanted}, status=201)
        self.secrets[made["id"]] = made["secret"]
        return str(made["id"])

    async def new_session(self, label: str, who: str = ACME, **wanted: Any) -> dict[str, Any]:
        body = {"metadata": {"label": label, "ü": "ß €"}, "env": ENV, "idle_timeout_s": 7200, **wanted}
        made: dict[str, Any] = await self.call(who, "POST", "/api/sessions", body, status=201)
        self.sessions[label] = made["session_id"]
        return made

    async def run(self, label: str, command: str, who: str = ACME) -> Any:
        return await self.call(who, "POST", f"/api/sessions/{self.sessions[label]}/exec", {"command": command})

    async def once(self, who: str, path: str, body: Any, key: str, status: int) -> Any:
        """Something with an Idempotency-Key, whose answer must be the same later."""
        answer = await self.call(who, "POST", path, body, status=status, headers={"Idempotency-Key": key})
        self.replays.append({"as": who, "path": path, "body": body, "key": key, "status": status, "answer": answer})
        return answer

    async def first_part(self) -> None:
        """Ends with sessions that the next start of the server finds lost."""
        await self.call(ADMIN, "PUT", "/api/admin/tenants/acme", {
            "quota": {"sessions": 12, "requests_per_minute": 100000, "environments": ["base"],
                      "limits": {"memory_mb": 2048}},
            "policy": {"mode": "enforce", "deny": ["curl"]},
        })  # fmt: skip
        await self.call(ADMIN, "PUT", "/api/admin/tenants/*", {"quota": {"sessions": 3, "exec_seconds_per_day": 5000}})
        await self.new_key(ACME, tenant="acme")
        await self.new_key(READER, tenant="acme", scopes=["read"], expires_in_s=300 * 86400, quota={"sessions": 0})
        await self.new_key(BETA, tenant="beta")
        revoked = await self.new_key(REVOKED, tenant="acme")
        await self.call(ADMIN, "DELETE", f"/api/admin/keys/{revoked}", status=204)
        await self.gone_webhook()
        await self.new_session("lost", thread_id="thread-lost")
        await self.new_session("replaced", thread_id="thread-replaced")

    async def gone_webhook(self) -> None:
        """A webhook that its receiver does not want any more."""
        async with receiving(saying(b"", "410 Gone"), WEBHOOK_ADDRESS, WEBHOOK_PORT):
            hook = await self.new_webhook("/gone", events=["session.ended"], description="nobody is there")
            await self.call(ACME, "POST", f"/api/webhooks/{hook}/test")

    async def second_part(self) -> None:
        await self.new_session("replacing", thread_id="thread-replaced", replace_lost=True)
        hook = await self.new_webhook("/hook", description="is not there yet")
        await self.new_session("thread", thread_id="thread-running")
        limits = {"memory_mb": 512, "cpus": 0.5, "pids": 100}
        await self.new_session("limited", limits=limits, require=["seccomp"], max_lifetime_s=86400)
        await self.new_session("beta", BETA, thread_id="thread-running")
        body = {"thread_id": "thread-once", "metadata": {"label": "once"}, "idle_timeout_s": 7200}
        made = await self.once(ACME, "/api/sessions", body, "key-of-create", 201)
        self.sessions["once"] = made["session_id"]
        path = f"/api/sessions/{made['session_id']}/exec"
        await self.once(ACME, path, {"command": "echo once; exit 3"}, "key-of-exec", 200)
        await self.run("thread", "echo kept > file; cat file")
        await self.run("beta", "echo beta", BETA)
        await self.new_session("deleted", thread_id="thread-ended")
        await self.call(ACME, "DELETE", f"/api/sessions/{self.sessions['deleted']}")
        await self.new_session("idle", idle_timeout_s=1)
        await self.new_session("old", max_lifetime_s=1)
        await until(lambda: self.is_in("idle", "ended"))
        await until(lambda: self.is_in("old", "ended"))
        await asyncio.sleep(1)
        await until(lambda: self.tried_to_deliver(hook))

    async def is_in(self, label: str, state: str) -> bool:
        found = await self.call(ACME, "GET", f"/api/sessions/{self.sessions[label]}")
        await asyncio.sleep(0.5)
        return bool(found["state"] == state)

    async def tried_to_deliver(self, hook: str) -> bool:
        found = (await self.call(ACME, "GET", f"/api/webhooks/{hook}/deliveries"))["deliveries"]
        await asyncio.sleep(1)
        return bool(found) and all(one["attempts"] and one["state"] == "waiting" for one in found)

    async def begin_what_is_held(self, label: str) -> asyncio.Task[Any]:
        """One session is being made, another destroyed, and neither comes to an end."""
        creating = asyncio.create_task(self.new_session(label, thread_id="thread-creating", limits={"pids": 77}))

        async def both() -> bool:
            states = [one["state"] for one in (await self.call(ACME, "GET", "/api/sessions"))["sessions"]]
            return {"creating", "stopping"} <= set(states)

        stopping = asyncio.create_task(self.call(ACME, "DELETE", f"/api/sessions/{self.sessions['stopping']}"))
        await until(both)
        return asyncio.ensure_future(asyncio.gather(creating, stopping, return_exceptions=True))

    async def cluster_part(self) -> None:
        """A session of the worker that does not come back, and a worker that gets no new ones."""
        await self.new_session("away", thread_id="thread-away", labels={"place": "away"})
        await self.call(ADMIN, "PATCH", "/api/cluster/workers/worker-2", {"draining": True})

    async def answers(self) -> dict[str, dict[str, Any]]:
        paths = {
            ADMIN: ["/api/whoami", "/api/admin/keys", "/api/admin/tenants", "/api/admin/usage?first=2020-01-01"],
            ACME: ["/api/whoami", "/api/webhooks", f"/api/sessions?limit=1000&{EVERY_STATE}"],
            READER: ["/api/whoami"],
            BETA: ["/api/whoami", f"/api/sessions?limit=1000&{EVERY_STATE}"],
        }  # fmt: skip
        paths[ACME] += [f"/api/webhooks/{hook}/deliveries" for hook in self.secrets]
        paths[ADMIN] += ["/api/admin/audit?limit=1000"]  # last: it has the requests before it
        return {who: {path: await self.call(who, "GET", path) for path in some} for who, some in paths.items()}

    async def written_down(self) -> dict[str, Any]:
        answers = await self.answers()
        assert answers[ADMIN]["/api/admin/audit?limit=1000"]["next"] is None
        return {
            "wall": time.time(), "now": boot_time(), "boot": SystemClock().epoch,
            "keys": self.keys, "webhook_secrets": self.secrets, "sessions": self.sessions, "env": ENV,
            "replays": self.replays, "answers": answers,
        }  # fmt: skip


async def make(
    nodes: Sequence[ServerProcess], url: str, hold: Path, killed: Callable[[], Awaitable[None]]
) -> dict[str, Any]:
    """Fills what runs as these nodes, and kills them."""
    for node in nodes:
        node.start(wait=False)
    for node in nodes:
        node.wait_until_ready()
    filler = Filler(url)
    await filler.first_part()
    for node in nodes:
        assert node.stop() == 0
    for node in nodes:
        node.start(wait=False)
    for node in nodes:
        node.wait_until_ready()
    await until(lambda: filler.is_in("lost", "lost"))
    await until(lambda: filler.is_in("replaced", "lost"))
    await filler.second_part()
    if len(nodes) > 1:
        await filler.cluster_part()
    await filler.new_session("stopping", thread_id="thread-stopping")
    hold.touch()
    held = await filler.begin_what_is_held("creating")
    await asyncio.sleep(3)  # what is written down a while later: usage, audit, when keys were used
    found = await filler.written_down()
    await asyncio.sleep(3)
    await killed()
    await held
    return found


async def make_alone(directory: Path, source: str) -> dict[str, Any]:
    hold = directory / "hold"
    state = directory / "state"
    state.mkdir()
    argv = (sys.executable, "-c", HOLDABLE, "serve")
    server = ServerProcess(
        state, "--pool-size", "1", provider="fake", argv=argv, PYTHONPATH=source, HOLD=str(hold), **environ()
    )

    async def killed() -> None:
        server.kill()

    try:
        return await make([server], server.url, hold, killed)
    finally:
        server.kill()


async def make_cluster(directory: Path, source: str) -> dict[str, Any]:
    hold = directory / "hold"
    redis = RedisServer(directory / "redis", password=REDIS_PASSWORD)
    redis.start()
    redis.ask("SET", "{warren}", "1")
    values = environ(redis.url) | {"PYTHONPATH": source, "HOLD": str(hold), "WARREN_CLUSTER_SECRET": CLUSTER_SECRET}

    def node(kind: str, name: str, *flags: str) -> ServerProcess:
        (directory / name).mkdir()
        argv = (sys.executable, "-c", HOLDABLE, kind)
        return ServerProcess(directory / name, "--worker-id", name, *flags, provider="fake", argv=argv, **values)

    places = {"worker-1": "here", "worker-2": "here", "worker-3": "away"}
    workers = [node("worker", name, "--pool-size", "1", "--labels", f"place={place}") for name, place in places.items()]
    nodes = [*workers, node("coordinator", "coordinator-1")]

    async def killed() -> None:
        for one in nodes:
            one.kill()
        redis.ask("SAVE")

    try:
        return await make(nodes, nodes[-1].url, hold, killed)
    finally:
        for one in nodes:
            one.kill()
        redis.kill()


def pack(directory: Path, target: Path, names: Sequence[str]) -> None:
    def cleaned(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
        if not (info.isfile() or info.isdir()) or info.name.endswith(("server.log", "-shm")):
            return None
        info.uid = info.gid = 0
        info.uname = info.gname = ""
        return info

    with tarfile.open(target, "w:xz") as archive:
        for name in names:
            archive.add(directory / name, name, filter=cleaned)


async def main(source: str, target: Path) -> None:
    target.mkdir(exist_ok=True)
    found = {}
    with tempfile.TemporaryDirectory(dir="/tmp") as made:
        for name, maker in {"alone": make_alone, "cluster": make_cluster}.items():
            (Path(made) / name).mkdir()
            found[name] = await maker(Path(made) / name, source)
        pack(Path(made) / "alone", target / "alone.tar.xz", ["state"])
        shutil.move(Path(made) / "cluster/redis/dump.rdb", Path(made) / "cluster/dump.rdb")
        pack(Path(made) / "cluster", target / "cluster.tar.xz", ["dump.rdb", "worker-1", "worker-2"])
    (target / "answers.json").write_text(json.dumps(found, indent=1, ensure_ascii=False, sort_keys=True) + "\n")


if __name__ == "__main__":
    asyncio.run(main(str(Path(sys.argv[1]).resolve()), Path(sys.argv[2])))
