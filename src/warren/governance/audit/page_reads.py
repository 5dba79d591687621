"""Decides which reads of open dashboard pages get an audit entry.

A page that is left open asks for the same things every few seconds. Recording each of them would push everything else
out of the record and tell nobody more than the first: that this browser looks at this session. So what pages ask for
again and again is recorded once an hour for each signed-in browser, operation and session. Everything else is recorded
each time: changes, commands, what reads files, output or artifacts, requests that fail, and what comes with a key.
"""

from typing import Final

from warren.kernel.bounded_dict import BoundedDict
from warren.kernel.clock import Clock

AGAIN_S: Final = 3600.0
_MAX_ENTRIES: Final = 20_000  # a read that was forgotten early is recorded once more

POLLED: Final = frozenset(
    {
        *("list_sessions", "get_session", "list_metrics", "get_metrics", "follow_events", "read_audit"),
        *("list_processes", "list_contexts", "list_ports", "get_network", "list_artifacts"),
        *("list_environments", "list_images", "list_builds", "list_deliveries", "read_quotas", "read_all_quotas"),
        *("stats", "get_history", "cluster_status"),
    }
)
"""What pages ask for by themselves."""


class PageReads:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._recorded = BoundedDict[tuple[str, str, str], float](_MAX_ENTRIES)

    def may_record(self, page: str, action: str, session_id: str) -> bool:
        """Whether this request of a page gets an entry. `page` tells the signed-in browsers apart."""
        if action not in POLLED:
            return True
        now = self._clock.now()
        key = (page, action, session_id)
        last = self._recorded.get(key)
        if last is not None and now - last < AGAIN_S:
            return False
        self._recorded[key] = now
        return True
