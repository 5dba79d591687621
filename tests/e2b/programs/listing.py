"""Sandboxes are listed with filters, in pages, in both orders."""

import contextlib
import datetime

from checks import done, new_mark, since
from e2b import Sandbox, SandboxQuery, SandboxState


def ids_of(paginator) -> list[str]:
    found = []
    while paginator.has_next:
        found += [info.sandbox_id for info in paginator.next_items()]
    return found


mark = new_mark()
with contextlib.ExitStack() as stack:
    created = []
    for number in range(5):
        metadata = {**mark, "number": str(number), "kind": "odd one" if number % 2 else "even & one"}
        created.append(stack.enter_context(Sandbox.create(timeout=120, metadata=metadata)))
    ids = [sandbox.sandbox_id for sandbox in created]

    assert set(ids) <= set(ids_of(Sandbox.list()))
    assert sorted(ids_of(Sandbox.list(query=SandboxQuery(metadata=mark)))) == sorted(ids)
    only = SandboxQuery(metadata={**mark, "kind": "even & one"})
    assert sorted(ids_of(Sandbox.list(query=only))) == sorted(ids[::2])
    assert ids_of(Sandbox.list(query=SandboxQuery(metadata={**mark, "kind": "none"}))) == []
    running = SandboxQuery(metadata=mark, state=[SandboxState.RUNNING])
    assert len(ids_of(Sandbox.list(query=running))) == 5
    both = SandboxQuery(metadata=mark, state=[SandboxState.RUNNING, SandboxState.PAUSED])
    assert len(ids_of(Sandbox.list(query=both))) == 5
    paused = SandboxQuery(metadata=mark, state=[SandboxState.PAUSED])
    assert ids_of(Sandbox.list(query=paused)) == []

    pages = Sandbox.list(query=SandboxQuery(metadata=mark), limit=2)
    sizes = []
    token = None
    while pages.has_next:
        sizes.append(len(pages.next_items()))
        token = token or pages.next_token
    assert sizes[:2] == [2, 2], sizes
    assert sum(sizes) == 5
    assert len(ids_of(Sandbox.list(query=SandboxQuery(metadata=mark), limit=2, next_token=token))) == 3

    info = Sandbox.list(query=SandboxQuery(metadata={**mark, "number": "3"})).next_items()[0]
    assert info.sandbox_id == ids[3]
    assert info.metadata == {**mark, "number": "3", "kind": "odd one"}
    assert info.state is SandboxState.RUNNING
    assert info.end_at > info.started_at
    assert info.template_id == Sandbox.get_info(ids[3]).template_id

    if since(2, 50):
        assert ids_of(Sandbox.list(query=SandboxQuery(metadata=mark), order="asc", limit=2)) == ids
        assert ids_of(Sandbox.list(query=SandboxQuery(metadata=mark), order="desc", limit=2)) == ids[::-1]
        of_base = SandboxQuery(metadata=mark, template=info.template_id)
        assert sorted(ids_of(Sandbox.list(query=of_base))) == sorted(ids)
        assert ids_of(Sandbox.list(query=SandboxQuery(metadata=mark, template="none"))) == []
        later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(minutes=5)
        assert ids_of(Sandbox.list(query=SandboxQuery(metadata=mark, started_after=later))) == []
        third = Sandbox.get_info(ids[2]).started_at
        assert set(ids_of(Sandbox.list(query=SandboxQuery(metadata=mark, started_after=third)))) >= set(ids[3:])

    created[0].kill()
    assert sorted(ids_of(Sandbox.list(query=SandboxQuery(metadata=mark)))) == sorted(ids[1:])
done()
