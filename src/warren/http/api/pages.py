"""/api/ui: who is signed in, signing in and out, one-time links; and the tickets that open a terminal to other pages.

Pages are signed in by a cookie (`COOKIE`), which only counts as a credential for requests that this server's own pages
send (dashboard/access.py). Signing in needs no caller, and nothing of it tells more than a request with a wrong key.
"""

from typing import Annotated, Any, Final, Literal

from fastapi import Path
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from warren.access.bindings import Binding
from warren.access.identity import read_credentials
from warren.access.page_sessions import LASTS_S, PageSessions
from warren.access.tickets import LONGEST_S, Tickets
from warren.http.context import Anyone, Context, Ctx, JsonAnswer, Runner, new_router
from warren.http.request import Request as AskedRequest
from warren.http.request import request_of
from warren.http.server.http_guard import request_id
from warren.http.server.request_origin import is_secure_for_browser
from warren.model.access import Caller
from warren.model.addresses import canonical_origin
from warren.model.audit import AuditEntry
from warren.model.errors import Forbidden, InvalidRequest, NotFound, Unauthorized, WarrenError
from warren.sessions.request_context import note
from warren.sessions.schemas import Body, timestamp

COOKIE: Final = "__Host-warren"
PAGE_HEADER: Final = "x-warren-page"
MAX_ORIGINS: Final = 16
# For a person at the page: which header a key belongs into is no help there.
_KEY_REMEDY: Final = "paste all of it, and a key of this very server; its operator makes one: `warren keys create NAME`"
_ATTRIBUTES: Final = "Path=/; Secure; HttpOnly; SameSite=Strict"

router = new_router(tags=["pages"])


class SignInBody(Body):
    key: str = Field("", description="An API key, or a token", max_length=16 * 1024)
    code: str = Field("", description="Instead: the code of a one-time link", max_length=256)


class AccountView(BaseModel):
    tenant: str
    key_id: str
    scopes: list[str]
    expires_at: str | None = Field(description="When the page has to sign in again")


class SignedInView(AccountView):
    cookie: bool = Field(
        description="false: this page is not loaded in a way in which browsers keep a sign-in (neither HTTPS nor "
        "localhost), and has to send its key with each request"
    )


class PageFacts(BaseModel):
    version: str
    cluster: bool = Field(description="Whether this is a coordinator of a cluster")
    mode: Literal["keys", "open"] = Field(description="`open`: the server asks nobody for a key")
    account: AccountView | None = Field(description="null: nobody is signed in")


class SignInLinkView(BaseModel):
    url: str = Field(description="Signs in the browser that opens it, once")
    expires_at: str | None = Field(description="null: the server asks nobody for a key, so the link needs no code")


class TicketBody(Body):
    kind: Literal["terminal"] = Field("terminal", description="What the ticket opens")
    process_id: str = Field("", description="Only this process; else any terminal of the session", max_length=256)
    read_only: bool = Field(False, description="To watch, not to type; needs a process_id")
    expires_in_s: float = Field(3600, ge=1, le=LONGEST_S, description="How long what it opens stays open")
    origins: list[str] = Field(
        default_factory=list,
        max_length=MAX_ORIGINS,
        description="The sites that may show the terminal in a frame, beside the operator's `embed_origins`",
        examples=[["https://app.example.com"]],
    )


class TicketView(BaseModel):
    ticket: str = Field(description="Good for one use, within a minute")
    expires_at: str = Field(description="When what it opens is closed")
    url: str = Field(description="The page with the terminal, for a browser or a frame")


class RedeemBody(Body):
    ticket: str = Field(max_length=256)


class RedeemedView(BaseModel):
    token: str = Field(
        description="For `Authorization: Bearer TOKEN`, or for a WebSocket as the subprotocol `warren.token.TOKEN` "
        "beside `warren`"
    )
    session_id: str
    process_id: str = Field(description="Empty: any terminal of the session")
    read_only: bool
    expires_at: str


SessionId = Annotated[str, Path(description="The session's id, as creating it gave it")]


@router.get("/api/ui/session", response_model=PageFacts, summary="What a page has to know, and who is signed in")
async def get_page_session(request: Request, context: Ctx) -> Response:
    """Needs no caller. With a key in a header instead of the cookie it tells whose key it is."""
    _pages(context)
    account = await _account(request_of(request), context)
    return JsonAnswer(
        {
            "version": context.version,
            "cluster": context.cluster is not None,
            "mode": "keys" if context.with_key else "open",
            "account": account,
        }
    )


async def _account(request: AskedRequest, context: Context) -> dict[str, Any] | None:
    grant, scope = request.grant, request.scope
    if grant is not None and grant.is_page:
        return _show_account(grant.caller, grant.expires_at)
    if context.with_key and not read_credentials(scope["headers"]):
        return None
    try:
        return _show_account(await context.identity.caller(scope["headers"]), None)
    except Unauthorized as exc:
        _record_refused(context, scope, "get_page_session", exc)
        return None


@router.post("/api/ui/sign-in", response_model=SignedInView, summary="Sign a page in")
async def sign_in(request: Request, body: SignInBody, context: Ctx) -> Response:
    """By a key or by the code of a link. The answer sets a cookie that only this server's own pages can use."""
    pages = _pages(context)
    _check_page_header(request.scope)
    if bool(body.key) == bool(body.code):
        raise InvalidRequest("sign in with a key, or with the code of a link", remedy='{"key": …} or {"code": …}')
    keeps_cookie = is_secure_for_browser(request.scope)
    if body.code and not keeps_cookie:
        raise InvalidRequest(
            "a browser keeps a sign-in only for pages that it loads over HTTPS, or from localhost",
            remedy="open the link over HTTPS or on the server's own machine, or sign in with a key",
        )
    try:
        binding = await pages.use_code(body.code) if body.code else await context.pages_identity.bind(body.key)
        caller = await context.pages_identity.bound_caller(binding)
    except Unauthorized as exc:
        _record_refused(context, request.scope, "sign_in", exc)
        if body.code:
            raise
        raise Unauthorized(exc.message, remedy=_KEY_REMEDY) from None
    await context.tenancy.metering.quotas.request(caller)  # admission cannot count it: it does not know the caller
    _record(context, request.scope, "sign_in", caller)
    if not keeps_cookie or not context.with_key:
        return JsonAnswer({**_show_account(caller, binding.expires_at), "cookie": not context.with_key})
    token, session = await pages.sign_in(binding, request_of(request).page_token)
    answer = JsonAnswer({**_show_account(caller, session.expires_at), "cookie": True})
    answer.raw_headers.append(_cookie(token, LASTS_S))
    return answer


@router.post("/api/ui/sign-out", status_code=204, summary="Sign this page out")
async def sign_out(request: Request, context: Ctx) -> Response:
    pages = _pages(context)
    _check_page_header(request.scope)
    if token := request_of(request).page_token:
        await pages.sign_out(token)
    grant = request_of(request).grant
    if grant is not None:
        _record(context, request.scope, "sign_out", grant.caller)
    return _signed_out()


@router.post("/api/ui/sign-out-everywhere", status_code=204, summary="Sign out every page of the same key")
async def sign_out_everywhere(request: Request, context: Ctx, tenant: Anyone) -> Response:
    """Pages that were signed in with this key, or with tokens of this subject, have to sign in again."""
    await _pages(context).sign_out_everywhere(await _binding(request_of(request), context))
    return _signed_out()


@router.post(
    "/api/ui/links", status_code=201, response_model=SignInLinkView, summary="Make a link that signs a browser in"
)
async def create_sign_in_link(request: Request, context: Ctx, tenant: Anyone) -> Response:
    """It works once, within five minutes. Whoever opens it has the rights of the key that made it. A signed-in page
    makes none: what it can do must end when it ends."""
    pages = _pages(context)
    base_url = str(request.base_url)
    if not context.with_key:
        return JsonAnswer({"url": f"{base_url}ui/sessions", "expires_at": None}, 201)
    if request_of(request).grant is not None:
        raise Forbidden("only a key or a token makes links to sign in", remedy="use one: `warren ui` does")
    code, expires_at = await pages.make_code(await _binding(request_of(request), context))
    # After the #: browsers keep it to themselves, so that it is in no log and in no Referer.
    return JsonAnswer({"url": f"{base_url}ui/enter#{code}", "expires_at": timestamp(expires_at)}, 201)


@router.post(
    "/api/sessions/{session_id}/tickets",
    status_code=201,
    response_model=TicketView,
    tags=["sessions"],
    summary="Make a ticket for the session's terminal",
)
async def create_ticket(
    request: Request, session_id: SessionId, body: TicketBody, context: Ctx, tenant: Runner
) -> Response:
    """For a page without a key: it opens the session's terminals, or one process, and nothing else. Ends with the key
    it was made with. A signed-in page makes none, nor does a ticket: what they can do must end when they end."""
    if request_of(request).grant is not None:
        raise Forbidden("only a key or a token makes tickets", remedy="use one")
    origins = [_origin(text) for text in body.origins]
    session = await context.sessions.get(tenant, session_id)
    text, ticket = await _tickets(context).create(
        await _binding(request_of(request), context),
        session.id,
        body.process_id,
        read_only=body.read_only,
        lasts_s=body.expires_in_s,
        origins=origins,
    )
    note(process_id=body.process_id, read_only=body.read_only)
    url = f"{request.base_url}embed/terminal?ticket={text}"
    return JsonAnswer({"ticket": text, "expires_at": timestamp(ticket.expires_at), "url": url}, 201)


@router.post("/api/ui/tickets/redeem", response_model=RedeemedView, summary="Redeem a ticket")
async def redeem_ticket(body: RedeemBody, context: Ctx) -> Response:
    """Once, within a minute after it was made. Needs no other credential."""
    token, ticket = await _tickets(context).redeem(body.ticket)
    return JsonAnswer(
        {
            "token": token,
            "session_id": ticket.session_id,
            "process_id": ticket.process_id,
            "read_only": ticket.read_only,
            "expires_at": timestamp(ticket.expires_at),
        }
    )


def _check_page_header(scope: Scope) -> None:
    """Refuses requests of other sites: a form of another site cannot send this header, and a script may not."""
    if dict(scope["headers"]).get(PAGE_HEADER.encode()) != b"1":
        raise Forbidden("this request is for the pages of this server", remedy="send the header `X-Warren-Page: 1`")


def _cookie(value: str, lasts_s: float) -> tuple[bytes, bytes]:
    return b"set-cookie", f"{COOKIE}={value}; Max-Age={lasts_s:.0f}; {_ATTRIBUTES}".encode()


def _signed_out() -> Response:
    answer = Response(status_code=204)
    answer.raw_headers.append(_cookie("", 0))
    return answer


async def _binding(request: AskedRequest, context: Context) -> Binding:
    if request.grant is not None:
        return request.grant.binding
    refusal: Unauthorized | None = None
    for credential in read_credentials(request.scope["headers"]) or [""]:
        try:
            return await context.pages_identity.bind(credential)
        except Unauthorized as exc:
            refusal = refusal or exc
    assert refusal is not None
    raise refusal


def _origin(text: str) -> str:
    origin = canonical_origin(text)
    if origin is None:
        raise InvalidRequest(f"{text[:80]!r} is not an origin", remedy="write it as https://app.example.com")
    return origin


def _pages(context: Context) -> PageSessions:
    if context.page_sessions is None:
        raise NotFound("this server has no dashboard", remedy="start it with WARREN_DASHBOARD=true")
    return context.page_sessions


def _tickets(context: Context) -> Tickets:
    if context.tickets is None:
        raise NotFound("this server has no dashboard", remedy="start it with WARREN_DASHBOARD=true")
    return context.tickets


def _record(
    context: Context, scope: Scope, action: str, caller: Caller | None = None, exc: WarrenError | None = None
) -> None:
    """Writes the audit record of a request that needs no caller: admission does not record those."""
    if context.tenancy.audit is None:
        return
    client = scope.get("client")
    context.tenancy.audit.record(
        AuditEntry(
            context.sessions.clock.wall(),
            action,
            caller.tenant if caller else "",
            caller.key_id if caller else "",
            client[0] if client else "",
            request_id.get(),
            status=exc.http_status if exc else 200,
            result=exc.code if exc else "ok",
        )
    )


def _record_refused(context: Context, scope: Scope, action: str, exc: Unauthorized) -> None:
    if context.tenancy.refusals is None or context.tenancy.refusals.may_record(""):
        _record(context, scope, action, exc=exc)


def _show_account(caller: Caller, expires_at: float | None) -> dict[str, Any]:
    return {
        "tenant": caller.tenant,
        "key_id": caller.key_id,
        "scopes": sorted(caller.scopes),
        "expires_at": None if expires_at is None else timestamp(expires_at),
    }
