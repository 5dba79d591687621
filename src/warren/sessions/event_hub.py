"""Passes events on to whoever subscribes to them: webhooks, audit, usage."""

from collections.abc import Callable

from warren.logs import get_log
from warren.model.events import Event

Subscriber = Callable[[Event], None]

_log = get_log(__name__)


class EventHub:
    """Subscribers neither wait nor raise; if one raises, the others still get the event."""

    def __init__(self, *subscribers: Subscriber) -> None:
        self._subscribers = list(subscribers)

    def __repr__(self) -> str:
        return f"<EventHub: {len(self._subscribers)} subscribers>"

    def subscribe(self, subscriber: Subscriber) -> None:
        self._subscribers.append(subscriber)

    def publish(self, event: Event) -> None:
        for subscriber in self._subscribers:
            try:
                subscriber(event)
            except Exception as exc:
                _log.error("event_not_handled", kind=event.kind, subscriber=repr(subscriber), exc=exc)
