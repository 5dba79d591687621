"""Adds a route for each operation of the table, with the parameters of its handler, for the OpenAPI document.

The dispatcher (http/dispatch.py) answers these requests before the app sees them.
"""

import inspect
from collections.abc import Callable
from typing import Annotated, Any, Final

from fastapi import Body, Header, Path, Query, Security
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from warren.http.context import new_router, tenant_of
from warren.http.dispatch import HANDLERS, respond
from warren.http.request import request_of
from warren.model.api import Reads
from warren.model.session import MAX_KEY
from warren.sessions.operations.call import Handler

router = new_router()

_PARAMETERS: Final[dict[str, Any]] = {
    "session_id": Annotated[str, Path(description="The session's id, as creating it gave it")],
    "process_id": Annotated[str, Path(description="The process's id, as starting it gave it")],
    "context_id": Annotated[str, Path(description="The context's id", examples=["ctx_python"])],
    "execution_id": Annotated[str, Path(description="The cell's id, as `started` or its result gave it")],
    "artifact_id": Annotated[str, Path(description="The artifact's id, as saving or listing it gave it")],
    "snapshot": Annotated[str, Path(description="The snapshot's id or name")],
    "volume": Annotated[str, Path(description="The volume's name, or its id", examples=["cache"])],
    "port": Annotated[str, Path(description="A TCP port inside the sandbox", examples=["3000"])],
    "kind": Annotated[str, Path(description="environments, agents, tools or prompts", examples=["prompts"])],
    "entry": Annotated[str, Path(description="The entry's name", examples=["coding"])],
    "accept": Annotated[
        str, Header(description="`text/event-stream` asks for a stream", examples=["text/event-stream"])
    ],
    "idempotency_key": Annotated[
        str,
        Header(
            alias="Idempotency-Key",
            description="The same key with the same request gives the same answer, also after a restart of the server",
            max_length=MAX_KEY,
        ),
    ],
    "last_event_id": Annotated[str, Header(description="Where a broken stream goes on")],
    "range": Annotated[str, Header(description="`bytes=FROM-`, `bytes=FROM-TO` or `bytes=-LAST`")],
}


def _endpoint(handler: Handler) -> Callable[..., Any]:
    async def endpoint(request: Request, **arguments: Any) -> Response:
        asked = request_of(request)
        asked.params = request.path_params
        return await respond(handler, handler.operation, request.app.state.context, asked, request.receive)

    operation = handler.operation
    kinds: dict[str, Any] = {
        "request": Request,
        "tenant": Annotated[str, Security(tenant_of, scopes=[str(operation.scope)])],
    }
    kinds |= {name: kind for name, kind in _PARAMETERS.items() if f"{{{name}}}" in operation.path}
    optional: dict[str, Any] = {name: _PARAMETERS[name] for name in handler.headers}
    if handler.query is not None:
        kinds["query"] = Annotated[handler.query, Query()]
    if handler.body is not None and operation.reads is Reads.JSON:
        kinds["body"] = Annotated[handler.body, Body()]
    elif handler.body is not None:
        examples = dict(handler.body_examples) if handler.body_examples else None
        optional["body"] = Annotated[handler.body | None, Body(openapi_examples=examples)]
    defaults = {"body": None}
    required = [_parameter(name, kind, inspect.Parameter.empty) for name, kind in kinds.items()]
    others = [_parameter(name, kind, defaults.get(name, "")) for name, kind in optional.items()]
    endpoint.__signature__ = inspect.Signature([*required, *others])  # type: ignore[attr-defined]
    return endpoint


def _parameter(name: str, kind: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)


def _add(handler: Handler) -> None:
    operation = handler.operation
    body = {"requestBody": {"required": True, "content": handler.body_schema}} if handler.body_schema else None
    router.add_api_route(
        operation.path,
        _endpoint(handler),
        methods=[operation.method],
        name=operation.name,
        operation_id=operation.name,
        tags=[operation.tag],
        summary=operation.summary,
        description=handler.description,
        status_code=operation.status,
        response_model=handler.result,
        responses={status: dict(said) for status, said in handler.other_results.items()},
        response_class=Response if handler.result is None else JSONResponse,
        openapi_extra=body,
    )


for _handler in HANDLERS.values():
    _add(_handler)
