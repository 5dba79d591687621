"""Databases under load are saved while they write: every copy recovers, with all that they had acknowledged.

A loader writes numbers, one transaction each, and after each commit the number to a file. The file is never ahead of
the database at any moment, so it must not be in a snapshot, which is the disk as it was at one moment.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from faults.caller import Caller, calling
from faults.world import remove_state, until
from marks import first_of
from server_process import ServerProcess
from this_run import new_state_dir

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(1800)]

SQLITE = """
import sqlite3, sys
db = sqlite3.connect("/workspace/numbers.db", isolation_level=None)
db.execute("pragma journal_mode=wal")
db.execute("pragma synchronous=full")
db.execute("create table if not exists numbers (n integer primary key, filling blob)")
n = db.execute("select coalesce(max(n), 0) from numbers").fetchone()[0]
while True:
    n += 1
    db.execute("insert into numbers values (?, randomblob(3000))", (n,))
    if n % 50 == 0:
        db.execute("delete from numbers where n % 2 = 1 and n < ? or n < ?", (n - 100, n - 5000))
    open("/workspace/acknowledged.new", "w").write(str(n))
    import os; os.replace("/workspace/acknowledged.new", "/workspace/acknowledged")
"""
CHECK_SQLITE = """
import sqlite3
db = sqlite3.connect("/workspace/numbers.db")
assert db.execute("pragma integrity_check").fetchone()[0] == "ok"
last = db.execute("select max(n) from numbers").fetchone()[0]
acknowledged = int(open("/workspace/acknowledged").read())
assert last >= acknowledged, (last, acknowledged)
print(last)
"""
POSTGRES = """
set -e
export PATH=$(ls -d /usr/lib/postgresql/*/bin | tail -n 1):$PATH PGHOST=/tmp PGUSER=sandboxuser PGDATABASE=postgres
initdb -D /workspace/pg -A trust -U sandboxuser >/dev/null
cat >> /workspace/pg/postgresql.conf <<END
unix_socket_directories = '/tmp'
listen_addresses = ''
shared_buffers = 32MB
END
pg_ctl -D /workspace/pg -l /workspace/log -w start >/dev/null
psql -q -c 'create table numbers (n bigint primary key, filling text)'
n=0
while :; do
    n=$((n + 1))
    psql -q -c "insert into numbers values ($n, repeat(md5('$n'), 60))"
    echo $n > /workspace/acknowledged.new && mv /workspace/acknowledged.new /workspace/acknowledged
done
"""
CHECK_POSTGRES = """
set -e
export PATH=$(ls -d /usr/lib/postgresql/*/bin | tail -n 1):$PATH PGHOST=/tmp PGUSER=sandboxuser PGDATABASE=postgres
rm -f /workspace/pg/postmaster.pid /tmp/.s.PGSQL*
pg_ctl -D /workspace/pg -l /workspace/log2 -w -t 120 start >/dev/null
psql -q -c 'reindex table numbers'
last=$(psql -At -c "select max(n) from numbers where filling = repeat(md5(n::text), 60)")
[ "$last" -ge "$(cat /workspace/acknowledged)" ]
echo "$last"
"""


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def server(image_cache: Path) -> AsyncIterator[ServerProcess]:
    server = ServerProcess(new_state_dir(image_cache), "--container-image", "host", "--cpus", "1")
    await asyncio.to_thread(server.start)
    yield server
    server.kill()
    await asyncio.to_thread(remove_state, server.state_dir)


@pytest.fixture
async def caller(server: ServerProcess) -> AsyncIterator[Caller]:
    async with calling(server.url) as caller:
        yield caller


async def check_copies(caller: Caller, load: str, check: str, times: int) -> None:
    """Saves a session whose disk is written to all the time, and looks at a session of each snapshot."""
    session = (await caller.create(limits={"memory_mb": 512, "pids": 256})).good()["session_id"]
    (await caller.start(session, load, "loader")).good()
    await until(lambda: caller.output(session, "cat acknowledged 2>/dev/null || true"), "the loader writes", 60)
    reached = []
    for _ in range(times):
        saved = (await caller.ask("POST", f"/api/sessions/{session}/snapshots", json={})).good()["snapshot_id"]
        copy = (await caller.create(snapshot=saved)).good()["session_id"]
        reached.append(int(await caller.output(copy, check)))
        (await caller.delete(copy)).good()
        (await caller.ask("DELETE", f"/api/snapshots/{saved}")).good()
    assert (await caller.process(session, "loader")).good()["running"]
    assert reached == sorted(reached)
    assert reached[-1] > reached[0]
    (await caller.delete(session)).good()


@pytest.mark.parametrize("times", first_of([5, 100]))
async def test_sqlite_with_a_write_ahead_log_recovers_from_every_snapshot(caller: Caller, times: int) -> None:
    load, check = (f"cat > /tmp/p.py <<'END'\n{text}\nEND\npython3 /tmp/p.py" for text in (SQLITE, CHECK_SQLITE))
    await check_copies(caller, load, check, times)


@pytest.mark.extended
async def test_postgresql_recovers_from_every_snapshot(caller: Caller) -> None:
    await check_copies(caller, POSTGRES, CHECK_POSTGRES, 100)
