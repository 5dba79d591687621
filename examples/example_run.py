"""Runs an example; where there is no server, or the server refuses, it ends with one sentence and the remedy."""

import sys
from collections.abc import Callable

from warren import SandboxClient, WarrenError


def run_example(main: Callable[[], None]) -> None:
    try:
        # Asked first: an agent would take the error for the answer of a tool, and go on.
        SandboxClient.list_sessions(thread_id="example")
        main()
    except WarrenError as exc:
        sys.exit(f"The example needs a Warren server: {exc}")
