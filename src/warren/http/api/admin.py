"""/api/admin: the keys and tenants of a server, for its operator; /api/whoami for everybody."""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import Path, Query
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from warren.access.keys import MAX_OVERLAP_S, key_view
from warren.access.revocations import KEPT_S, Revocation
from warren.access.tenants import read_tenant, tenant_view
from warren.http.context import Admin, Anyone, Context, Ctx, JsonAnswer, new_router
from warren.http.request import caller_of
from warren.model.access import USUAL_SCOPES, ApiKey, Quota, read_scopes
from warren.model.errors import Unavailable
from warren.model.session import DEFAULT_TENANT
from warren.sessions.request_context import note
from warren.sessions.schemas import Body, timestamp

router = new_router(prefix="/api", tags=["admin"])

KeyId = Annotated[str, Path(description="The key's id, as listing them shows it")]
RevocationId = Annotated[str, Path(description="The revocation's id, as listing them shows it")]
TenantName = Annotated[str, Path(description="A tenant's name; `*` stands for all that have no record", max_length=64)]


class KeyBody(Body):
    name: str = Field(description="For people", examples=["ci"], max_length=128)
    tenant: str = Field(DEFAULT_TENANT, description="Whose key it is")
    scopes: list[str] = Field(
        default_factory=lambda: sorted(map(str, USUAL_SCOPES)),
        description="Some of read, exec, files, sessions, audit, metrics, admin",
    )
    expires_in_s: float | None = Field(None, gt=0, le=10 * 366 * 86400, description="After this it is refused")
    quota: dict[str, Any] = Field(default_factory=dict, description="What this key may have, see the tenants' quotas")


class KeyView(BaseModel):
    id: str
    name: str
    tenant: str
    scopes: list[str]
    created_at: str
    expires_at: str | None
    used_at: str | None
    old_until: str | None = Field(description="Until then the secret from before it was rotated opens as well")
    quota: dict[str, Any]


class NewKeyView(KeyView):
    key: str = Field(description="The key itself. It is shown this once and cannot be shown again")


class KeyList(BaseModel):
    keys: list[KeyView]


class TenantBody(Body):
    quota: dict[str, Any] = Field(
        default_factory=dict,
        description="sessions, disk_mb, creates_per_minute, requests_per_minute, exec_seconds_per_day, "
        "bytes_out_per_day, egress_bytes_per_day, egress_connections, egress_mbps, gpus, "
        "paused_sessions, artifacts_mb, max_lifetime_s, environments (a list), limits (the most a session may ask "
        "for), egress (a list of network rules: the most it may open)",
        examples=[{"sessions": 10, "requests_per_minute": 600}],
    )
    policy: dict[str, Any] = Field(
        default_factory=dict,
        description="The command policy of its sessions",
        examples=[{"mode": "enforce", "deny": ["curl"]}],
    )
    logs: str = Field(
        "",
        description="How much is kept, at least, of what its sessions do: off, commands or output; empty: what the "
        "server says",
        examples=["commands"],
    )


class TenantView(BaseModel):
    name: str
    quota: dict[str, Any]
    policy: dict[str, Any]
    logs: str


class TenantList(BaseModel):
    tenants: list[TenantView]


class RevocationBody(Body):
    token_id: str = Field("", description="The claim `jti` of one token", max_length=256)
    subject: str = Field("", description="Instead: the claim `sub` of all tokens issued until now", max_length=256)
    kept_s: float = Field(KEPT_S, gt=0, le=10 * 366 * 86400, description="Longer than any of the tokens is valid")


class RevocationView(BaseModel):
    id: str
    token_id: str
    subject: str
    made_at: str
    kept_until: str


class RevocationList(BaseModel):
    revocations: list[RevocationView]


class CallerView(BaseModel):
    tenant: str
    key_id: str
    scopes: list[str]
    quota: dict[str, Any]
    key_quota: dict[str, Any]


@router.get("/whoami", response_model=CallerView, summary="Who the server takes you for")
async def whoami(request: Request, tenant: Anyone) -> dict[str, Any]:
    caller = caller_of(request)
    return {
        "tenant": tenant,
        "key_id": caller.key_id,
        "scopes": sorted(caller.scopes),
        "quota": caller.quota.as_mapping(),
        "key_quota": caller.key_quota.as_mapping(),
    }


@router.post("/admin/keys", status_code=201, response_model=NewKeyView, summary="Make a key")
async def create_key(body: KeyBody, context: Ctx, tenant: Admin) -> Response:
    """Only this answer contains the key: the server keeps a salted hash of it."""
    expires_at = None if body.expires_in_s is None else context.sessions.clock.wall() + body.expires_in_s
    scopes, quota = read_scopes(body.scopes), Quota.from_mapping(body.quota)
    _check_environments(context, quota.environments)
    key, text = await context.tenancy.keys.create(body.name, body.tenant, scopes, expires_at, quota)
    note(about=key.id, whose=key.tenant, scopes=sorted(key.scopes))
    return JsonAnswer({**_show(key), "key": text}, 201)


@router.get("/admin/keys", response_model=KeyList, summary="List the keys")
async def list_keys(
    context: Ctx, tenant: Admin, of: Annotated[str, Query(description="Only those of this tenant")] = ""
) -> Response:
    return JsonAnswer({"keys": [_show(key) for key in await context.tenancy.keys.list(of)]})


@router.delete("/admin/keys/{key_id}", status_code=204, summary="Revoke a key")
async def revoke_key(key_id: KeyId, context: Ctx, tenant: Admin) -> Response:
    """The server refuses the key from then on; other servers that share the store do so within two seconds."""
    note(about=key_id)
    await context.tenancy.keys.revoke(key_id)
    return Response(status_code=204)


@router.post("/admin/keys/{key_id}/rotate", response_model=NewKeyView, summary="Give a key a new secret")
async def rotate_key(
    key_id: KeyId,
    context: Ctx,
    tenant: Admin,
    keep_old_s: Annotated[
        float, Query(ge=0, le=MAX_OVERLAP_S, description="The old one opens as well for so long")
    ] = 0,
) -> Response:
    """Name, tenant, scopes, expiry and quota stay; the old secret stops working, at once or after `keep_old_s`. What
    was made with the old one, such as a browser's sign-in, ends with it."""
    note(about=key_id, **({"keep_old_s": keep_old_s} if keep_old_s else {}))
    key, text = await context.tenancy.keys.rotate(key_id, keep_old_s)
    return JsonAnswer({**_show(key), "key": text})


@router.post("/admin/revocations", status_code=201, response_model=RevocationView, summary="Revoke tokens")
async def revoke_tokens(body: RevocationBody, context: Ctx, tenant: Admin) -> Response:
    """Refuses one token, or all that a subject has got until now, before they expire. Other servers that share the
    store do so within two seconds."""
    made = await context.tenancy.revocations.revoke(body.token_id, body.subject, body.kept_s)
    note(about=made.id, subject=made.subject)
    return JsonAnswer(_show_revocation(made), 201)


@router.get("/admin/revocations", response_model=RevocationList, summary="List the revocations of tokens")
async def list_revocations(context: Ctx, tenant: Admin) -> Response:
    found = await context.tenancy.revocations.list()
    return JsonAnswer({"revocations": [_show_revocation(one) for one in found]})


@router.delete("/admin/revocations/{revocation_id}", status_code=204, summary="Withdraw a revocation")
async def withdraw_revocation(revocation_id: RevocationId, context: Ctx, tenant: Admin) -> Response:
    """The tokens are accepted again, unless they have expired."""
    note(about=revocation_id)
    await context.tenancy.revocations.withdraw(revocation_id)
    return Response(status_code=204)


@router.get("/admin/tenants", response_model=TenantList, summary="List the tenants that something is set for")
async def list_tenants(context: Ctx, tenant: Admin) -> Response:
    return JsonAnswer({"tenants": [tenant_view(one) for one in await context.tenancy.tenants.list()]})


@router.get("/admin/tenants/{name}", response_model=TenantView, summary="Show what is set for a tenant")
async def get_tenant(name: TenantName, context: Ctx, tenant: Admin) -> Response:
    return JsonAnswer(tenant_view(await context.tenancy.tenants.get(name)))


@router.put("/admin/tenants/{name}", response_model=TenantView, summary="Set a tenant's quota and command policy")
async def put_tenant(name: TenantName, body: TenantBody, context: Ctx, tenant: Admin) -> Response:
    """Replaces what was set. It holds for the next request; sessions that run keep running."""
    note(about=name)
    new = read_tenant(name, body.quota, body.policy, body.logs)
    note(quota=new.quota.as_mapping(), policy=str(new.policy.mode), logs=new.logs)
    # An environment that was removed since must not keep the operator from changing the rest.
    known = (await context.tenancy.tenants.of(name)).quota.environments
    _check_environments(context, set(new.quota.environments).difference(known))
    return JsonAnswer(tenant_view(await context.tenancy.tenants.put(new)))


@router.delete("/admin/tenants/{name}", status_code=204, summary="Take away what is set for a tenant")
async def delete_tenant(name: TenantName, context: Ctx, tenant: Admin) -> Response:
    """Its keys and sessions stay; what `*` says holds for it from now on."""
    note(about=name)
    await context.tenancy.tenants.delete(name)
    return Response(status_code=204)


def _check_environments(context: Context, names: Iterable[str]) -> None:
    """Raises UnknownEnvironment for a name that the registry does not have; one with a mistake in its file it has."""
    for name in names:
        with suppress(Unavailable):
            context.environments(name)


def _show_revocation(one: Revocation) -> dict[str, Any]:
    return {**asdict(one), "made_at": timestamp(one.made_at), "kept_until": timestamp(one.kept_until)}


def _show(key: ApiKey) -> dict[str, Any]:
    view = key_view(key)
    for name in ("created_at", "expires_at", "used_at", "old_until"):
        view[name] = None if view[name] is None else timestamp(view[name])
    return view
