"""The table of operations and what is derived from it agree."""

import pytest
from fastapi.routing import APIWebSocketRoute

from warren.http.api import operations, sockets
from warren.http.dispatch import HANDLERS
from warren.local.calls import HANDLERS as LOCAL_HANDLERS
from warren.model.api import OPERATIONS, Answers, Operation, OperationFinder, Reads
from warren.sdk.protocol import request_for

ROWS = list(OPERATIONS.values())
PARAMETERS = {
    "session_id": "ses_1",
    "process_id": "p_1",
    "context_id": "ctx_python",
    "execution_id": "cell_1",
    "artifact_id": "art_1",
    "port": "3000",
    "kind": "tools",
    "entry": "x",
}


def path_of(row: Operation) -> str:
    return row.path.format(**PARAMETERS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_an_operation_is_found_by_its_method_and_path(row: Operation) -> None:
    found = OperationFinder().find(row.method, path_of(row))
    assert found is not None
    assert found[0] is row
    assert found[1] == {name: PARAMETERS[name] for name in row.names_in_path}


@pytest.mark.parametrize(
    "path", ["", "/", "/api/sessions/", "/api/sessions//exec", "/api/sessions/a/exec/", "/execute/"]
)
def test_other_paths_are_no_operation(path: str) -> None:
    for method in ("GET", "POST", "PUT", "DELETE", "PATCH", "WEBSOCKET"):
        assert OperationFinder().find(method, path) is None


def test_every_operation_has_a_handler_or_is_a_socket_and_no_handler_is_without_a_row() -> None:
    served = {row.name for row in ROWS if row.answers is not Answers.SOCKET}
    assert set(HANDLERS) == served
    assert {route.name for route in operations.router.routes} == served
    assert {route.name for route in sockets.router.routes if isinstance(route, APIWebSocketRoute)} == set(
        OPERATIONS
    ) - served


def test_the_local_mode_performs_everything_but_the_words_of_older_clients() -> None:
    older = {row.name for row in ROWS if row.tag in ("flat", "e2b")}
    assert set(LOCAL_HANDLERS) == set(HANDLERS) - older


@pytest.mark.parametrize("name", HANDLERS)
def test_a_handler_takes_what_its_row_says(name: str) -> None:
    handler = HANDLERS[name]
    row = handler.operation
    assert (handler.body is not None) == (row.reads in (Reads.JSON, Reads.OPTIONAL_JSON))
    assert (handler.stream is not None) == (row.answers in (Answers.EVENTS, Answers.VALUE_OR_EVENTS, Answers.BYTES))
    assert (handler.run is not None) == (row.answers not in (Answers.EVENTS, Answers.BYTES))
    assert set(row.in_query) <= set(handler.query.model_fields if handler.query else ())
    arguments = handler.query or handler.body
    assert all(arguments is not None and noted in arguments.model_fields for noted, _ in row.audited)


def test_a_client_sends_arguments_where_the_row_says() -> None:
    sent = request_for("run_command", "a/b", {"command": "ls", "encoding": "base64", "cwd": None}, key="k")
    assert (sent.method, sent.target, sent.values, sent.key) == (
        "POST", "/api/sessions/a%2Fb/exec?encoding=base64", {"command": "ls"}, "k",
    )  # fmt: skip
    sent = request_for("read_output", "s", {"process_id": "p 1", "offset": 3})
    assert (sent.method, sent.target, sent.values) == ("GET", "/api/sessions/s/processes/p%201/output?offset=3", None)
    sent = request_for("start_process", "s", {"command": "ls", "process_id": "mine"})
    assert (sent.target, sent.values) == ("/api/sessions/s/processes", {"command": "ls", "process_id": "mine"})
