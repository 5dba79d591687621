"""A new session state is one member, one row of the table and its meaning: no store has to be changed."""

import os
import re
import shutil
import sqlite3
import sys
from pathlib import Path

import anyio
import pytest
from redis_server import running_redis

import warren
from warren.stores.sqlite import SqliteStore

_PROGRAM = Path(__file__).parent / "new_state_program.py"
_MEMBERS = '    DORMANT = "dormant"\n    ARCHIVED = "archived"\n'
_ROWS = """
    _S.DORMANT: StateRules(
        next=frozenset({_S.DORMANT, _S.RUNNING, _S.LOST, _S.STOPPING}),
        is_usable=True,
        can_be_lost=True,
        holds_sandbox=True,
        expires=True,
    ),
    _S.ARCHIVED: StateRules(next=frozenset(), is_active=False),
"""


def _add_states(package: Path) -> None:
    model = package / "model" / "session.py"
    text = model.read_text()
    for pattern, replacement in (
        (r'(    ENDED = "ended"\n)', rf"\1{_MEMBERS}"),
        (r"(STATES: .* = \{)\n", rf"\1{_ROWS}"),
        (r"(_S.RUNNING: StateRules\(\n +next=frozenset\(\{)", r"\1_S.DORMANT, _S.ARCHIVED, "),
    ):
        text, number = re.subn(pattern, replacement, text)
        assert number == 1
    model.write_text(text)


def _indexes(path: Path) -> dict[str, str]:
    with sqlite3.connect(path) as connection:
        return dict(connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL"))


@pytest.mark.anyio
async def test_every_store_takes_a_state_that_was_added_to_the_table(tmp_path: Path) -> None:
    shutil.copytree(Path(warren.__file__).parent, tmp_path / "copy" / "warren", ignore=shutil.ignore_patterns("bin"))
    _add_states(tmp_path / "copy" / "warren")
    earlier = tmp_path / "earlier.db"
    await (await SqliteStore.open(earlier)).close()
    path = f"{tmp_path / 'copy'}:{_PROGRAM.parents[1]}"
    with running_redis(tmp_path / "redis") as server:
        done = await anyio.run_process(
            [sys.executable, str(_PROGRAM), str(tmp_path), server.url, str(earlier)],
            env={**os.environ, "PYTHONPATH": path},
            check=False,
        )
    assert done.returncode == 0, (done.stdout + done.stderr).decode()
    assert _indexes(earlier) == _indexes(tmp_path / "new.db")


# The indexes of the first version of the file: a store that was written by it keeps them.
_FIRST_INDEXES = {
    "active_threads": "CREATE UNIQUE INDEX active_threads ON sessions (tenant, thread_id)\n"
    "        WHERE state != 'ended' AND thread_id != ''",
    "ended_threads": "CREATE INDEX ended_threads ON sessions (tenant, thread_id, created_at, id)\n"
    "        WHERE state = 'ended' AND thread_id != ''",
    "listed": "CREATE INDEX listed ON sessions (tenant, created_at, id, state)",
    "active": "CREATE INDEX active ON sessions (deadline, id, state) WHERE state != 'ended'",
    "held": "CREATE INDEX held ON sessions (tenant, state, key_id, disk_mb) WHERE state != 'ended'",
    "over": "CREATE INDEX over ON sessions (epoch, ended) WHERE state = 'ended'",
}


@pytest.mark.anyio
async def test_the_indexes_of_a_file_of_the_first_version_are_not_made_again(tmp_path: Path) -> None:
    await (await SqliteStore.open(tmp_path / "s.db")).close()
    assert _indexes(tmp_path / "s.db").items() >= _FIRST_INDEXES.items()
