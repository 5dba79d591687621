"""/api/secrets: a tenant sets secrets for its sessions. They go in, and never come out."""

from typing import Annotated, Any

from fastapi import Path, Query
from pydantic import BaseModel, Field, SecretStr
from starlette.requests import Request
from starlette.responses import Response

from warren.governance.secrets import Secret, secret_view
from warren.http.context import Ctx, JsonAnswer, SessionUser, check_scope, new_router
from warren.http.request import caller_of
from warren.model.access import Scope, check_tenant
from warren.model.secrets import MAX_FORMAT, MAX_HOSTS, MAX_PATH, SecretKind, new_binding
from warren.sessions.request_context import keep_secret, note
from warren.sessions.schemas import Body, timestamp

router = new_router(prefix="/api/secrets", tags=["secrets"])

SecretName = Annotated[str, Path(description="The secret's name: small letters, digits and -", examples=["openai"])]
OfTenant = Annotated[
    str,
    Query(alias="tenant", description="Another tenant's, for keys with the scope admin; yours if empty", max_length=64),
]


class SecretBody(Body):
    value: SecretStr = Field(description="The secret: one line of printable ASCII. It is never shown again")
    hosts: list[str] = Field(
        description="The hosts that it is sent to, by name: no wildcard, no address",
        examples=[["api.example.com"]],
        min_length=1,
        max_length=MAX_HOSTS,
    )
    header: str = Field("", description="The header that carries it", examples=["Authorization"], max_length=100)
    query: str = Field("", description="Instead of a header: the query parameter that carries it", max_length=100)
    format: str = Field(
        "",
        description="How it is written: `{}` stands for the value, `{base64}` for its encoding. By default `{}`, or "
        "what is usual for the kind",
        examples=["Bearer {}"],
        max_length=MAX_FORMAT,
    )
    kind: str = Field(
        "",
        description="What it is for, so that programs inside find it by themselves: "
        + ", ".join(filter(None, SecretKind)),
    )
    path: str = Field(
        "",
        description="Where the service of `kind` begins, if that is not usual",
        examples=["/v1"],
        max_length=MAX_PATH,
    )
    scrub: bool = Field(
        True, description="Also take the value out of answers; they are then asked for without compression"
    )
    expires_in_s: float | None = Field(
        None, gt=0, le=10 * 366 * 86400, description="After this it is not sent any more", allow_inf_nan=False
    )


class SecretView(BaseModel):
    name: str
    tenant: str
    hosts: list[str]
    header: str | None
    query: str | None
    format: str
    kind: str | None
    path: str
    scrub: bool
    expires_at: str | None
    created_at: str
    changed_at: str


class SecretList(BaseModel):
    secrets: list[SecretView]


@router.put("/{name}", response_model=SecretView, summary="Set a secret")
async def set_secret(
    name: SecretName, body: SecretBody, request: Request, context: Ctx, tenant: SessionUser, of: OfTenant = ""
) -> Response:
    """A secret of that name is replaced, with everything it is bound to; running sessions that use it follow at once,
    in a cluster within two seconds."""
    value = body.value.get_secret_value()
    keep_secret([value])
    owner = _owner(request, tenant, of)
    values: dict[str, Any] = body.model_dump(exclude={"value", "hosts", "expires_in_s"})
    if body.expires_in_s is not None:
        values["expires_at"] = context.sessions.clock.wall() + body.expires_in_s
    binding = new_binding(name, body.hosts, **values)
    note(about=name, tenant_of_secret=owner, hosts=list(binding.hosts))
    secret, _ = await context.tenancy.secrets.put(owner, binding, value)
    return JsonAnswer(_show(secret))


@router.get("", response_model=SecretList, summary="List the secrets")
async def list_secrets(request: Request, context: Ctx, tenant: SessionUser, of: OfTenant = "") -> Response:
    """Without their values, which no request gets."""
    found = await context.tenancy.secrets.list(_owner(request, tenant, of))
    return JsonAnswer({"secrets": [_show(secret) for secret in found]})


@router.get("/{name}", response_model=SecretView, summary="Show what a secret is bound to")
async def get_secret(
    name: SecretName, request: Request, context: Ctx, tenant: SessionUser, of: OfTenant = ""
) -> Response:
    return JsonAnswer(_show(await context.tenancy.secrets.get(_owner(request, tenant, of), name)))


@router.delete("/{name}", status_code=204, summary="Delete a secret")
async def delete_secret(
    name: SecretName, request: Request, context: Ctx, tenant: SessionUser, of: OfTenant = ""
) -> Response:
    """Running sessions lose it at once, in a cluster within two seconds."""
    owner = _owner(request, tenant, of)
    note(about=name, tenant_of_secret=owner)
    await context.tenancy.secrets.delete(owner, name)
    return Response(status_code=204)


def _owner(request: Request, tenant: str, of: str) -> str:
    if not of or of == tenant:
        return tenant
    check_scope(caller_of(request), Scope.ADMIN)
    return check_tenant(of)


def _show(secret: Secret) -> dict[str, Any]:
    view = secret_view(secret)
    for name in ("expires_at", "created_at", "changed_at"):
        view[name] = None if view[name] is None else timestamp(view[name])
    return view
