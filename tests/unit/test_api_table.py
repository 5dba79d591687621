"""The table of operations and what is derived from it agree."""

import pytest
from fastapi.routing import APIWebSocketRoute

from warren.http import operation_routes
from warren.http.api import sockets
from warren.http.app import new_fastapi_app
from warren.http.dispatch import HANDLERS
from warren.http.e2b.handlers import HANDLERS as E2B_HANDLERS
from warren.local.calls import HANDLERS as LOCAL_HANDLERS
from warren.model.api import E2B_OPERATIONS, FINDER, OPERATIONS, Answers, Operation, OperationFinder, Reads
from warren.sdk.protocol import request_for

ROWS = list(OPERATIONS.values())
PARAMETERS = {
    "session_id": "ses_1",
    "process_id": "p_1",
    "context_id": "ctx_python",
    "execution_id": "cell_1",
    "artifact_id": "art_1",
    "snapshot": "ready",
    "volume": "cache",
    "port": "3000",
    "kind": "tools",
    "entry": "x",
    "sandbox_id": "0" * 32,
    "of_sandbox": "0" * 32,
    "template": "mine",
    "alias": "mine",
    "build": "1",
    "hash": "a1",
    "tag": "v1",
    "webhook_id": "1",
    "volume_id": "1",
    "secret_id": "1",
}


def path_of(row: Operation) -> str:
    return row.path.format(**PARAMETERS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_an_operation_is_found_by_its_method_and_path(row: Operation) -> None:
    found = OperationFinder().find(row.method, path_of(row))
    assert found is not None
    assert found[0] is row
    assert found[1] == {name: PARAMETERS[name] for name in row.names_in_path}


@pytest.mark.parametrize("row", E2B_OPERATIONS.values(), ids=lambda row: row.name)
def test_an_operation_of_e2b_is_found_too_also_with_a_slash_at_its_end(row: Operation) -> None:
    for path in (path_of(row), f"{path_of(row)}/"):
        found = FINDER.find(row.method, path)
        assert found is not None
        assert found[0] is row
        assert found[1] == {name: PARAMETERS[name] for name in row.names_in_path}
        assert row.method in FINDER.methods(path)


def test_every_operation_of_e2b_has_a_handler() -> None:
    assert set(E2B_HANDLERS) == set(E2B_OPERATIONS)
    assert not set(E2B_OPERATIONS) & set(OPERATIONS)


@pytest.mark.parametrize(
    ("method", "path", "name"),
    [
        ("GET", "/api/registry/prompts/x", "get_registry_entry"),
        ("POST", "/api/registry/prompts/x/render", "render_prompt"),
        ("GET", "/e2b/api/sandboxes/metrics", "e2b_list_metrics"),
        ("GET", "/e2b/api/sandboxes/metrics/logs", "e2b_get_logs"),
        ("DELETE", "/e2b/api/templates/tags", "e2b_remove_tags"),
        ("GET", "/e2b/api/templates/tags", "e2b_get_template"),
        ("GET", "/e2b/api/templates/aliases/tags", "e2b_get_template_alias"),
        ("GET", "/e2b/api/templates/a/tags/count", "e2b_count_tags"),
        ("GET", "/e2b/api/templates/a/tags/count/assignments", "e2b_list_tag_assignments"),
        ("GET", "/e2b/api/sandboxes//", "e2b_list_sandboxes"),
    ],
)
def test_what_a_row_names_comes_before_what_could_be_a_parameter(method: str, path: str, name: str) -> None:
    found = FINDER.find(method, path)
    assert found is not None
    assert found[0].name == name


def test_of_several_slashes_only_paths_without_parameters_lose_all() -> None:
    assert FINDER.find("GET", "/e2b/api/sandboxes/x//") is None
    assert FINDER.find("GET", "/e2b/envd/ses_1/files/") is not None


@pytest.mark.parametrize(
    "path", ["", "/", "/api/sessions/", "/api/sessions//exec", "/api/sessions/a/exec/", "/execute/"]
)
def test_other_paths_are_no_operation(path: str) -> None:
    for method in ("GET", "POST", "PUT", "DELETE", "PATCH", "WEBSOCKET"):
        assert OperationFinder().find(method, path) is None


def test_every_operation_has_a_handler_or_is_a_socket_and_no_handler_is_without_a_row() -> None:
    served = {row.name for row in ROWS if row.answers is not Answers.SOCKET}
    assert set(HANDLERS) == served
    assert {route.name for route in operation_routes.router.routes} == served
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


def test_no_two_schemas_of_the_openapi_document_share_a_name() -> None:
    """FastAPI puts the module before a name that two models share."""
    schemas = new_fastapi_app("0").openapi()["components"]["schemas"]
    assert len(schemas) > 100
    assert [name for name in schemas if "__" in name] == []
