"""Passes events on to whoever subscribes to them: webhooks, audit, usage."""

from collections.abc import Callable

from warren.kernel.logs import get_log
from warren.model.events import Event, EventKind

Subscriber = Callable[[Event], None]
Wants = Callable[[str, EventKind], bool]

_log = get_log(__name__)


class EventHub:
    """Subscribers neither wait nor raise; if one raises, the others still get the event."""

    def __init__(self, *subscribers: Subscriber) -> None:
        self._subscribers: list[Subscriber] = []
        self._wants: list[Wants] = []
        for subscriber in subscribers:
            self.subscribe(subscriber)

    def __repr__(self) -> str:
        return f"<EventHub: {len(self._subscribers)} subscribers>"

    def subscribe(self, subscriber: Subscriber, wants: Wants = lambda tenant, kind: True) -> None:
        """`wants` tells whether the subscriber has any use for events of a kind; it may get others too."""
        self._subscribers.append(subscriber)
        self._wants.append(wants)

    def is_wanted(self, tenant: str, kind: EventKind) -> bool:
        for wants in self._wants:  # noqa: SIM110 (each command asks, and a generator takes twice the time)
            if wants(tenant, kind):
                return True
        return False

    def publish(self, event: Event) -> None:
        for subscriber in self._subscribers:
            try:
                subscriber(event)
            except Exception as exc:
                _log.error("event_not_handled", kind=event.kind, subscriber=repr(subscriber), exc=exc)
