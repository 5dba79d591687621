"""The OpenAPI document against the server: Schemathesis sends what it allows and what it does not, to every operation.

Random strings would never name a session, so most calls get the id of a real one, and of a real process where they
need one; the others keep what was generated. What a call may destroy is made for it alone.
"""

import contextlib
import itertools
import json
import secrets
from collections import Counter
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest
import requests
import schemathesis
from e2e.alone_or_cluster import DEAD, KINDS, Place, running
from e2e.conftest import NewState
from schemathesis.config import SchemathesisConfig
from schemathesis.core.transport import Response
from schemathesis.engine import events, from_schema
from schemathesis.hooks import HookContext

_SHORT = {"WARREN_COMMAND_TIMEOUT_S": "2", "WARREN_MAX_COMMAND_TIMEOUT_S": "5"}  # seconds: it may hit on `sleep 1000`
_SEED = 20240229
_EXAMPLES = 10
_NOBODY = "http://127.0.0.1:9/nobody"  # a port that nothing listens on
_DESTROYING = ("kill_process", "forget_process", "send_signal")
_REMOVING = ("remove_file", "e2b_remove_file", "e2b_remove_file_by_query")
_OF_A_FILE = ("flat_download_file", "move_file", "read_file", *_REMOVING)
_CREATING = ("create_session", "flat_create_session")
_CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "response_headers_conformance",
    "negative_data_rejection",
    "missing_required_header",
    "unsupported_method",
    "allow_header_conformance",
)


@pytest.fixture(scope="module", params=KINDS)
def place(request: pytest.FixtureRequest, new_state: NewState) -> Iterator[Place]:
    flags = ("--pool-size", "2", "--pool-min", "1", "--pool-max", "4", "--log-level", "warning")
    with running(request.param, new_state, *flags, WARREN_WEBHOOK_NETWORKS="127.0.0.0/8", **_SHORT) as place:
        yield place


@pytest.fixture(scope="module")
def document(place: Place) -> dict[str, Any]:
    found: dict[str, Any] = requests.get(f"{place.server.url}/openapi.json", timeout=30).json()
    return found


_ENTRY = {"kind": "prompts", "entry": "coding"}


class Things:
    """Sessions, processes and so on for calls to hit."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._url = place.server.url
        self._numbers = itertools.count()
        self._calls = Counter[str]()
        self.http = requests.Session()
        self._session_id = self.new_session()

    def new_session(self) -> str:
        session_id = str(self.http.post(f"{self._url}/create_session", timeout=30).json()["session_id"])
        self.new_process(session_id, "kept")
        return session_id

    def new_file(self, session_id: str) -> str:
        self.http.put(f"{self._url}/api/sessions/{session_id}/files/content?path=a", data=b"x", timeout=30)
        return "a"

    def new_artifact(self, session_id: str) -> str:
        body = {"paths": [self.new_file(session_id)]}
        saved = self.http.post(f"{self._url}/api/sessions/{session_id}/artifacts", json=body, timeout=30)
        return str(saved.json()["artifacts"][0]["artifact_id"])

    def live_session(self) -> str:
        """The generator learns ids from answers, so it may have ended ours, or its process."""
        kept = f"{self._url}/api/sessions/{self._session_id}/processes/kept"
        answer = self.http.get(kept, timeout=30)
        if answer.status_code != 200 or not answer.json()["running"]:
            self._session_id = self.new_session()
        return self._session_id

    def new_process(self, session_id: str, process_id: str = "") -> str:
        process_id = process_id or f"p{next(self._numbers)}"
        body: dict[str, Any] = {"command": "sleep 1000", "process_id": process_id, "terminal": {}}
        answer = self.http.post(f"{self._url}/api/sessions/{session_id}/processes", json=body, timeout=30)
        assert answer.status_code == 201, answer.text
        return process_id

    def new_volume(self) -> str:
        """Another one each time: a copy, or a session, keeps the one before."""
        body = {"name": f"kept-{secrets.token_hex(8)}", "size_mb": 16}
        return str(self.http.post(f"{self._url}/api/volumes", json=body, timeout=30).json()["name"])

    def new_webhook(self) -> str:
        place = f"{self._url}/api/webhooks"
        for hook in self.http.get(place, timeout=30).json()["webhooks"][10:]:
            self.http.delete(f"{place}/{hook['id']}", timeout=30)
        body = {"url": _NOBODY, "events": ["quota.reached"]}
        return str(self.http.post(place, json=body, timeout=30).json()["id"])

    def delete(self, session_id: str) -> None:
        self.http.delete(f"{self._url}/api/sessions/{session_id}", timeout=30)

    def aim(self, case: Any) -> None:
        """The first three of four calls of an operation reach something real. No webhook calls another machine."""
        if _name(case) == "create_webhook" and isinstance(case.body, dict) and isinstance(case.body.get("url"), str):
            case.body["url"] = _NOBODY
        if isinstance(case.path_parameters, dict) and "worker_id" in case.path_parameters:
            self._aim_at_worker(case)
        name = _name(case)
        self._calls[name] += 1
        if self._calls[name] % 4 == 0:
            return
        session_id = self.new_session() if name in ("delete_session", "flat_cleanup") else self.live_session()
        for place in (case.path_parameters, case.query, case.body):
            if isinstance(place, dict) and isinstance(place.get("session_id"), str):
                place["session_id"] = session_id
        if isinstance(case.path_parameters, dict) and "process_id" in case.path_parameters:
            case.path_parameters["process_id"] = self.new_process(session_id) if name in _DESTROYING else "kept"
        if isinstance(case.path_parameters, dict) and "artifact_id" in case.path_parameters:
            case.path_parameters["artifact_id"] = self.new_artifact(session_id)
        if isinstance(case.path_parameters, dict) and "volume" in case.path_parameters:
            case.path_parameters["volume"] = self.new_volume()
        if isinstance(case.path_parameters, dict) and "webhook_id" in case.path_parameters:
            case.path_parameters["webhook_id"] = self.new_webhook()
        if name in ("set_secret", "get_secret", "delete_secret") and case.meta.generation.mode == "positive":
            self._aim_at_secret(case)

        if isinstance(case.path_parameters, dict) and {"kind", "entry"} & set(case.path_parameters):
            self._aim_at_entry(case)

        for place, key in ((case.query, "path"), (case.body, "source")):
            if name in _OF_A_FILE and isinstance(place, dict) and isinstance(place.get(key), str):
                place[key] = self.new_file(session_id)
        if name == "write_file" and isinstance(case.query, dict) and isinstance(case.query.get("path"), str):
            case.query["path"] = "written"  # other operations may have made a directory of the example's name

    def _aim_at_secret(self, case: Any) -> None:
        """What a secret is bound to must fit together, which no schema says."""
        secret = {"value": "something to keep", "hosts": ["api.example.com"], "header": "Authorization"}
        self.http.put(f"{self._url}/api/secrets/kept", json=secret, timeout=30)
        case.path_parameters, case.query = {"name": "kept"}, {}
        if isinstance(case.body, dict):
            case.body = secret

    def _aim_at_entry(self, case: Any) -> None:
        """Prompts have their variables, and take no others."""
        case.path_parameters.update({name: _ENTRY[name] for name in case.path_parameters})
        if isinstance(case.body, dict) and isinstance(case.body.get("variables"), dict):
            case.body["variables"] = {"language": "Go"} if case.meta.generation.mode == "positive" else {"language": 1}

    def _aim_at_worker(self, case: Any) -> None:
        """Never at the one that the sessions are on: the generator learns its name, and would drain it."""
        self._place.bury()
        if next(self._numbers) % 4 or case.path_parameters["worker_id"] == "worker-1":
            case.path_parameters["worker_id"] = DEAD

    def tidy(self, case: Any, response: Response) -> None:
        if _name(case) in _CREATING and response.status_code < 300:
            self.delete(json.loads(response.content)["session_id"])


def hurried(case: Any) -> None:
    """Nobody waits for minutes here."""
    if _name(case) == "flat_execute" and isinstance(case.body, dict) and _is_time(case.body.get("timeout")):
        case.body["timeout"] = 2
    name = {"wait_for_process": "timeout_s", "read_output": "wait_s", "list_ports": "timeout_s"}.get(_name(case))
    if name is None:
        return
    query = case.query = dict(case.query or {})
    with contextlib.suppress(TypeError, ValueError):
        if 0 < float(query.get(name, 60)) <= 300:
            query[name] = 0.01


def _is_time(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 300


def _name(case: Any) -> str:
    return str(case.operation.definition.raw["operationId"])


def configured(phase: str) -> SchemathesisConfig:
    checks: dict[str, Any] = {"enabled": False, **{name: {"enabled": True} for name in _CHECKS}}
    # 502: nothing listens on the port that was waited for.
    # 503: a layer of isolation was required that the fake does not have.
    checks["not_a_server_error"]["expected-statuses"] = ["2xx", "3xx", "4xx", "502", "503"]
    checks["negative_data_rejection"]["expected-statuses"] = ["4xx"]
    return SchemathesisConfig.from_dict(
        {
            "seed": _SEED,
            "max-stream-events": 1,
            "request-timeout": 20,
            "checks": checks,
            "generation": {"max-examples": _EXAMPLES, "database": "none", "no-shrink": True},
            "phases": {name: {"enabled": name == phase} for name in ("examples", "coverage", "fuzzing", "stateful")},
            "operations": [
                # Their bodies are bytes of any kind, also none, and forms, where every value is a text.
                {"include-operation-id": name, "checks": {"negative_data_rejection": {"enabled": False}}}
                for name in ("write_file", "write_archive", "flat_upload_file")
            ],
        }
    )


@contextlib.contextmanager
def hooked(things: Things) -> Iterator[None]:
    def before_call(context: HookContext, case: Any, kwargs: dict[str, Any]) -> None:
        hurried(case)
        things.aim(case)

    def after_call(context: HookContext, case: Any, response: Response) -> None:
        things.tidy(case, response)

    schemathesis.serializer.alias("application/x-tar", "application/octet-stream")
    schemathesis.hook(before_call)
    schemathesis.hook(after_call)
    try:
        yield
    finally:
        schemathesis.hooks.unregister(before_call)
        schemathesis.hooks.unregister(after_call)


def run(schema: Any) -> tuple[list[str], set[str]]:
    """What was found wrong, and which operations have succeeded at least once."""
    found, succeeded = list[str](), set[str]()
    for event in from_schema(schema).execute():
        if isinstance(event, events.ScenarioFinished):
            answers = [call.response for call in event.recorder.interactions.values() if call.response is not None]
            succeeded |= {str(event.label) for answer in answers if answer.status_code < 300}
            found += _failures(event)
        elif isinstance(event, events.NonFatalError | events.FatalError):
            found.append(
                f"{getattr(event, 'label', '')}: {getattr(event, 'value', event)!r} {getattr(event, 'info', '')}"
            )
    return found, succeeded


def check_phase(place: Place, phase: str) -> set[str]:
    """Gives the operations that have succeeded at least once."""
    schema = schemathesis.openapi.from_url(f"{place.server.url}/openapi.json", config=configured(phase))
    with hooked(Things(place)):
        found, succeeded = run(schema)
    assert not found, "\n\n".join(found[:20])
    assert "internal error" not in place.server.log
    return succeeded


@pytest.mark.timeout(400)
@pytest.mark.extended
def test_no_random_value_is_a_surprise(place: Place) -> None:
    check_phase(place, "fuzzing")


@pytest.mark.timeout(400)
@pytest.mark.extended
def test_the_server_does_what_its_document_says(place: Place, document: dict[str, Any]) -> None:
    succeeded = check_phase(place, "coverage")
    names = {name for name, _ in operations(document)}
    # No random bytes are a tar, no cell is left to be read, and a server that runs by itself has no workers.
    impossible = {"PUT /api/sessions/{session_id}/files/archive", "GET /api/sessions/{session_id}/code/{execution_id}"}
    impossible.add("PUT /api/snapshots")  # nor a download of a snapshot
    # The example is there already, so there is no build to cancel. Page sessions are for servers with keys, and begin
    # with one.
    impossible |= {"DELETE /api/admin/builds"}
    impossible |= {f"POST /api/ui/{what}" for what in ("sign-in", "sign-out", "tickets/redeem")}
    if place.redis is None:
        impossible |= {name for name in names if " /api/cluster" in name}
    assert names - succeeded == impossible


def _failures(event: events.ScenarioFinished) -> Iterator[str]:
    for case_id, checks in event.recorder.checks.items():
        for check in checks:
            if check.failure_info is not None:
                call = event.recorder.interactions.get(case_id)
                answer = call.response if call is not None else None
                told = answer.content[:500] if answer is not None else b""
                info = check.failure_info
                yield f"{event.label}: {check.name}: {info.failure}\n{info.code_sample}\n{told!r}"


# What a new user reads.


def operations(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield f"{method.upper()} {path}", operation


def test_every_operation_is_described(document: dict[str, Any]) -> None:
    names = [operation["operationId"] for _, operation in operations(document)]
    assert len(names) == len(set(names))
    assert {"create_session", "run_command", "read_file", "flat_execute", "e2b_execute"} <= set(names)
    for name, operation in operations(document):
        assert operation["operationId"].isidentifier(), name
        assert operation["operationId"].islower(), name
        assert operation["summary"], name
        assert operation["tags"], name
        assert [entry["name"] for entry in operation.get("parameters", []) if not entry.get("description")] == [], name
    known = {tag["name"] for tag in document["tags"]}
    assert {tag for _, operation in operations(document) for tag in operation["tags"]} == known


def test_every_answer_has_a_schema_and_every_error_is_a_problem(document: dict[str, Any]) -> None:
    for name, operation in operations(document):
        for status in ("4XX", "5XX"):
            content = operation["responses"][status]["content"]
            assert content == {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}, name
        assert "422" not in operation["responses"], name
        for status, answer in operation["responses"].items():
            assert answer["description"], (name, status)
            assert status == "204" or answer["content"], (name, status)
            for kind, content in answer.get("content", {}).items():
                assert kind == "text/event-stream" or content["schema"], (name, status, kind)
    assert not {"HTTPValidationError", "ValidationError"} & set(document["components"]["schemas"])


def test_every_example_is_valid(document: dict[str, Any]) -> None:
    tried = list(examples(document, document, []))
    assert len(tried) > 20
    for place, schema, example in tried:
        whole = {**schema, "components": document["components"]}
        assert jsonschema_rs.validator_for(whole).is_valid(example), (place, example)


def examples(node: Any, document: dict[str, Any], place: list[str]) -> Iterator[tuple[str, dict[str, Any], Any]]:
    """Each example with the schema it is of: inside schemas, of parameters, of bodies."""
    if isinstance(node, list):
        for at, item in enumerate(node):
            yield from examples(item, document, [*place, str(at)])
    if not isinstance(node, dict):
        return
    schema = node.get("schema", node)
    found = node.get("examples", [])
    values = [entry["value"] for entry in found.values()] if isinstance(found, dict) else found
    if place and place[-1] != "properties":
        values = [*values, *([node["example"]] if "example" in node else [])]
        yield from ((" ".join(place), schema, value) for value in values)
    for name, item in node.items():
        if name not in ("examples", "example", "default"):
            yield from examples(item, document, [*place, name])
