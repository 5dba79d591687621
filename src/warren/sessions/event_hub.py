"""Passes events on to whoever subscribes to them: webhooks, audit, usage."""

from collections.abc import Callable, Collection

from warren.kernel.logs import get_log
from warren.model.events import Event, EventKind

Subscriber = Callable[[Event], None]
Wants = Callable[[str, EventKind], bool]

_log = get_log(__name__)


class EventHub:
    """Subscribers neither wait nor raise; if one raises, the others still get the event."""

    def __init__(self, *subscribers: Subscriber) -> None:
        self._subscribers: list[Subscriber] = []
        self._wants: dict[EventKind, list[Wants]] = {kind: [] for kind in EventKind}
        for subscriber in subscribers:
            self.subscribe(subscriber)

    def __repr__(self) -> str:
        return f"<EventHub: {len(self._subscribers)} subscribers>"

    def subscribe(
        self,
        subscriber: Subscriber,
        wants: Wants = lambda tenant, kind: True,
        *,
        kinds: Collection[EventKind] = tuple(EventKind),
    ) -> None:
        """`kinds` and `wants` tell of what events the subscriber has any use; it may get others too."""
        self._subscribers.append(subscriber)
        for kind in kinds:
            self._wants[kind].append(wants)

    def is_wanted(self, tenant: str, kind: EventKind) -> bool:
        """Returns whether anybody has a use for such events: if not, the caller need not make them."""
        for wants in self._wants[kind]:  # noqa: SIM110 (each command asks, and a generator takes twice the time)
            if wants(tenant, kind):
                return True
        return False

    def publish(self, event: Event) -> None:
        for subscriber in self._subscribers:
            try:
                subscriber(event)
            except Exception as exc:
                _log.error("event_not_handled", kind=event.kind, subscriber=repr(subscriber), exc=exc)
