"""Tells everybody who wants to know what happened."""

import logging
from collections.abc import Callable

from warren.model.events import Event

Sink = Callable[[Event], None]

_log = logging.getLogger(__name__)


class Events:
    """Sinks neither wait nor raise; one that does raise harms nobody else."""

    def __init__(self, *sinks: Sink) -> None:
        self._sinks = list(sinks)

    def __repr__(self) -> str:
        return f"<Events: {len(self._sinks)} sinks>"

    def add(self, sink: Sink) -> None:
        self._sinks.append(sink)

    def publish(self, event: Event) -> None:
        for sink in self._sinks:
            try:
                sink(event)
            except Exception:
                _log.exception("the event %s could not be told to %r", event.kind, sink)
