"""Which reads of open pages are recorded."""

import pytest

from warren.governance.audit.page_reads import _MAX_ENTRIES, AGAIN_S, POLLED, PageReads
from warren.http.app import new_fastapi_app
from warren.testing.manual_clock import ManualClock


@pytest.mark.anyio
async def test_a_read_is_recorded_once_an_hour_for_each_browser_operation_and_session() -> None:
    clock = ManualClock()
    reads = PageReads(clock)
    seen = [("a", "get_session", "ses_1"), ("b", "get_session", "ses_1"), ("a", "list_ports", "ses_1")]
    seen += [("a", "get_session", "ses_2"), ("a", "list_sessions", "")]
    assert all(reads.may_record(*one) for one in seen)
    await clock.advance(AGAIN_S - 1)
    assert not any(reads.may_record(*one) for one in seen)
    await clock.advance(1)
    assert all(reads.may_record(*one) for one in seen)


def test_whatever_else_a_page_does_is_recorded_each_time() -> None:
    reads = PageReads(ManualClock())
    for action in ("run_command", "read_file", "read_output", "read_artifact", "read_all_audit", "delete_session"):
        assert reads.may_record("a", action, "ses_1")
        assert reads.may_record("a", action, "ses_1")


def test_what_it_remembers_is_bounded() -> None:
    reads = PageReads(ManualClock())
    for number in range(_MAX_ENTRIES + 1):
        assert reads.may_record("a", "get_session", f"ses_{number}")
    assert reads.may_record("a", "get_session", "ses_0")
    assert not reads.may_record("a", "get_session", f"ses_{_MAX_ENTRIES}")


def test_what_counts_as_polled_only_reads() -> None:
    paths = new_fastapi_app("0").openapi()["paths"].values()
    assert {path["get"]["operationId"] for path in paths if "get" in path} >= POLLED
