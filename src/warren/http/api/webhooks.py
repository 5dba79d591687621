"""/api/webhooks: a tenant registers addresses that get the events of its sessions."""

from typing import Annotated, Any

from fastapi import Path, Query
from pydantic import BaseModel, Field
from starlette.responses import Response

from warren.governance.webhooks.destinations import MAX_URL
from warren.governance.webhooks.outbox import Webhooks
from warren.governance.webhooks.registry import EVERYTHING, MAX_DESCRIPTION, Webhook, webhook_view
from warren.http.context import Context, Ctx, JsonAnswer, SessionUser, new_router
from warren.model.errors import NotFound
from warren.model.events import EventKind
from warren.sessions.request_context import note
from warren.sessions.schemas import Body, timestamp

router = new_router(prefix="/api/webhooks", tags=["webhooks"])

WebhookId = Annotated[str, Path(description="The webhook's id, as making it gave it")]


class WebhookBody(Body):
    url: str = Field(
        description="Where it is posted to: https or http", examples=["https://example.com/hooks"], max_length=MAX_URL
    )
    events: list[str] = Field(
        default_factory=lambda: [EVERYTHING],
        description=f"Some of {', '.join(EventKind)}; `*` stands for all",
        examples=[["session.ended"]],
        max_length=100,
    )
    description: str = Field("", description="For people", max_length=MAX_DESCRIPTION)


class WebhookView(BaseModel):
    id: str
    url: str
    events: list[str]
    description: str
    created_at: str
    disabled: str | None = Field(description="Why nothing is sent to it any more")


class NewWebhookView(WebhookView):
    secret: str = Field(description="What its messages are signed with. It is shown this once")


class WebhookList(BaseModel):
    webhooks: list[WebhookView]


class PingView(BaseModel):
    delivered: bool
    status: int | None = Field(description="What the receiver answered; null if there was no answer")
    error: str


class DeliveryView(BaseModel):
    id: str
    message_id: str = Field(description="The `webhook-id` it has at the receiver")
    type: str
    state: str = Field(description="waiting, sending or failed")
    attempts: int
    created_at: str
    attempted_at: str | None
    next_attempt_at: str | None
    status: int | None = Field(description="What the receiver answered last; null if there was no answer")
    error: str


class DeliveryList(BaseModel):
    deliveries: list[DeliveryView]


@router.post("", status_code=201, response_model=NewWebhookView, summary="Make a webhook")
async def create_webhook(body: WebhookBody, context: Ctx, tenant: SessionUser) -> Response:
    """The secret is in this answer and in no other. An address that may not be called is refused; a name is looked up
    when something is sent."""
    hook, secret = await _webhooks(context).create(tenant, body.url, body.events, body.description)
    note(about=hook.id)
    return JsonAnswer({**_show(hook), "secret": secret}, 201)


@router.get("", response_model=WebhookList, summary="List the webhooks")
async def list_webhooks(context: Ctx, tenant: SessionUser) -> Response:
    return JsonAnswer({"webhooks": [_show(hook) for hook in await _webhooks(context).list(tenant)]})


@router.get("/{webhook_id}", response_model=WebhookView, summary="Show a webhook")
async def get_webhook(webhook_id: WebhookId, context: Ctx, tenant: SessionUser) -> Response:
    return JsonAnswer(_show(await _webhooks(context).get(tenant, webhook_id)))


@router.delete("/{webhook_id}", status_code=204, summary="Delete a webhook")
async def delete_webhook(webhook_id: WebhookId, context: Ctx, tenant: SessionUser) -> Response:
    """Waiting deliveries are dropped."""
    note(about=webhook_id)
    await _webhooks(context).delete(tenant, webhook_id)
    return Response(status_code=204)


@router.post("/{webhook_id}/rotate", response_model=NewWebhookView, summary="Give a webhook a new secret")
async def rotate_webhook(
    webhook_id: WebhookId,
    context: Ctx,
    tenant: SessionUser,
    keep_old_s: Annotated[
        float, Query(ge=0, le=7 * 86400, description="The old one signs as well for so long")
    ] = 86400,
) -> Response:
    """The new secret is in this answer and in no other. Until the old one ends, each message has a signature for both,
    so that receivers can change over at any time in between."""
    note(about=webhook_id)
    hook, secret = await _webhooks(context).rotate(tenant, webhook_id, keep_old_s)
    return JsonAnswer({**_show(hook), "secret": secret})


@router.post("/{webhook_id}/test", response_model=PingView, summary="Send a ping to a webhook")
async def test_webhook(webhook_id: WebhookId, context: Ctx, tenant: SessionUser) -> Response:
    """Makes one attempt at once, whatever events the webhook subscribes to, and answers with its outcome."""
    note(about=webhook_id)
    outcome = await _webhooks(context).test(tenant, webhook_id)
    return JsonAnswer({"delivered": outcome.delivered, "status": outcome.status, "error": outcome.error})


@router.get("/{webhook_id}/deliveries", response_model=DeliveryList, summary="List what is not delivered")
async def list_deliveries(
    webhook_id: WebhookId,
    context: Ctx,
    tenant: SessionUser,
    limit: Annotated[int, Query(ge=1, le=1000, description="At most so many, the newest first")] = 100,
) -> Response:
    """Deliveries that wait, are being sent, or were given up in the last day. Successful ones are not kept."""
    found = await _webhooks(context).deliveries(tenant, webhook_id, limit)
    return JsonAnswer(
        {"deliveries": [_with_times(view, "created_at", "attempted_at", "next_attempt_at") for view in found]}
    )


def _webhooks(context: Context) -> Webhooks:
    webhooks = context.tenancy.webhooks
    if webhooks is None:
        raise NotFound("this server sends no webhooks", remedy="ask its operator")
    return webhooks


def _show(hook: Webhook) -> dict[str, Any]:
    return _with_times(webhook_view(hook), "created_at")


def _with_times(view: dict[str, Any], *names: str) -> dict[str, Any]:
    return {**view, **{name: None if view[name] is None else timestamp(view[name]) for name in names}}
