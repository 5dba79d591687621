"""Which session a request is about: a table for every place that it may be said in, and anything at all."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
from busiest_turn import MAX_S, busiest_turn
from hypothesis import example, given
from hypothesis import strategies as st

from warren.cluster.proxy.target import (
    Target,
    concerns_worker,
    read_target,
    target_in_form,
    target_in_header,
    target_in_json,
    target_in_query,
)
from warren.http.forwarding.http_requests import RequestBody
from warren.http.identify import find_operation
from warren.http.request import Request
from warren.model.api import FINDER, OPERATIONS, SessionIn


def scope(method: str, path: str, query: bytes = b"", kind: str = "http") -> dict[str, Any]:
    return {"type": kind, "method": method, "path": path, "query_string": query}


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("POST", "/api/sessions", SessionIn.JSON),
        ("GET", "/api/sessions", SessionIn.NOWHERE),
        ("POST", "/create_session", SessionIn.JSON),
        ("POST", "/execute", SessionIn.JSON),
        ("GET", "/execute", SessionIn.NOWHERE),
        ("POST", "/cleanup", SessionIn.JSON),
        ("POST", "/api/e2b/execute", SessionIn.JSON),
        ("POST", "/api/e2b/files", SessionIn.JSON),
        ("GET", "/api/e2b/files/ses_1", SessionIn.PATH),
        ("DELETE", "/api/e2b/files/ses_1", SessionIn.PATH),
        ("GET", "/api/e2b/files", SessionIn.QUERY),
        ("DELETE", "/api/e2b/files", SessionIn.QUERY),
        ("GET", "/download_file", SessionIn.QUERY),
        ("GET", "/list_files", SessionIn.QUERY),
        ("POST", "/upload_file", SessionIn.FORM),
        ("GET", "/api/sessions/ses_1", SessionIn.PATH),
        ("DELETE", "/api/sessions/ses_1", SessionIn.PATH),
        ("PUT", "/api/sessions/ses_1/files/content", SessionIn.PATH),
        ("GET", "/api/sessions/ses_1/", SessionIn.NOWHERE),
        ("GET", "/api/sessions/", SessionIn.NOWHERE),
        ("GET", "/api/sessionsx/ses_1", SessionIn.NOWHERE),
        ("GET", "/sessions", SessionIn.NOWHERE),
        ("GET", "/health", SessionIn.NOWHERE),
        ("GET", "/api/cluster", SessionIn.NOWHERE),
        ("GET", "/api/sessions/ses_1/metrics", SessionIn.PATH),
        ("GET", "/api/metrics", SessionIn.NOWHERE),
        ("GET", "/api/admin/keys", SessionIn.NOWHERE),
        ("GET", "//api/sessions/ses_1", SessionIn.NOWHERE),
    ],
)
def test_where_it_is_said(method: str, path: str, expected: SessionIn) -> None:
    found = FINDER.find(method, path)
    assert (SessionIn.NOWHERE if found is None else found[0].session_in) is expected
    assert expected is SessionIn.NOWHERE or (found is not None and concerns_worker(found[0]))


@pytest.mark.parametrize(
    ("kind", "path", "expected"),
    [
        ("http", "/api/sessions/ses_1/processes", "ses_1"),
        ("websocket", "/api/sessions/ses_1/exec", "ses_1"),
        ("websocket", "/api/sessions/ses_1/processes/p/attach", "ses_1"),
        ("http", "/api/sessions/a\nb", "a\nb"),
        ("http", "/api/sessions/ünï", "ünï"),
    ],
)
def test_a_session_in_the_path(kind: str, path: str, expected: str) -> None:
    asked = Request(scope("GET", path, kind=kind))
    if kind == "websocket":
        del asked.scope["method"]
    find_operation(asked)
    assert asked.operation is not None
    assert asyncio.run(read_target(asked.operation, asked, cast(RequestBody, None))) == Target(expected)


def test_every_operation_with_a_session_in_its_path_has_it_there() -> None:
    for row in OPERATIONS.values():
        # Links are made where they lead to: by the coordinator that the caller knows.
        is_forwarded = "{session_id}" in row.path and row.name != "create_link"
        assert (row.session_in is SessionIn.PATH) == is_forwarded, row.name


@pytest.mark.parametrize(
    ("name", "pattern", "value", "expected"),
    [
        ("X-Session", "(.*)", b"ses_1", "ses_1"),
        ("host", r"\d+-(\w+)\.example\.org", b"8000-ses_1.example.org", "ses_1"),
        ("host", r"\d+-(\w+)\.example\.org", b"example.org", ""),
    ],
)
def test_a_session_in_a_header_or_the_host_name(name: str, pattern: str, value: bytes, expected: str) -> None:
    asked = {**scope("GET", "/"), "headers": [(name.lower().encode(), value)]}
    assert target_in_header(asked, name, re.compile(pattern)) == Target(expected)


@pytest.mark.parametrize(
    ("query", "session_id", "thread_id"),
    [
        (b"session_id=a", "a", ""),
        (b"thread_id=t&path=x", "", "t"),
        (b"session_id=a&thread_id=t", "a", "t"),
        (b"session_id=a&session_id=b", "b", ""),
        (b"session_id=a&session_id=", "", ""),
        (b"session_id=%C3%BC+%2F", "ü /", ""),
        (b"session_id=%FF", "\ufffd", ""),
        (b"session_id", "", ""),
        (b"Session_Id=a", "", ""),
        (b"", "", ""),
        (b"&&==&%zz", "", ""),
    ],
)
def test_a_session_in_the_query_the_last_one_counts_as_it_does_for_the_app(
    query: bytes, session_id: str, thread_id: str
) -> None:
    assert target_in_query(scope("GET", "/list_files", query)) == Target(session_id, thread_id)


@pytest.mark.parametrize(
    ("body", "session_id", "thread_id"),
    [
        (b'{"session_id": "a"}', "a", ""),
        (b'{"thread_id": "t", "command": "true"}', "", "t"),
        (b'{"session_id": "a", "thread_id": "t"}', "a", "t"),
        (b'{"session_id": "a", "session_id": "b"}', "b", ""),
        (b'{"session_id": null, "thread_id": "t"}', "", "t"),
        (b'{"session_id": 7, "thread_id": ["t"]}', "", ""),
        (b'{"session_id": "\\ud800"}', "", ""),
        (b"", "", ""),
        (b"  ", "", ""),
        (b"[]", "", ""),
        (b'"session_id"', "", ""),
        (b"null", "", ""),
        (b"{", "", ""),
        (b'{"session_id": "\xff"}', "", ""),
        (b"[" * 100_000, "", ""),
        (b'{"x": ' + b"9" * 5000 + b"}", "", ""),
    ],
)
def test_a_session_in_a_json_body(body: bytes, session_id: str, thread_id: str) -> None:
    asked = asyncio.run(target_in_json(body))
    assert (asked.session_id, asked.thread_id) == (session_id, thread_id)


def test_the_other_fields_of_a_json_body_are_there_too() -> None:
    body = b'{"labels": {"gpu": "1"}, "image": "x"}'
    assert asyncio.run(target_in_json(body)).values == {"labels": {"gpu": "1"}, "image": "x"}
    assert asyncio.run(target_in_json(b"[1]")).values == {}


@pytest.mark.parametrize("value", [b"[],", b"{},", b"1e3,", b'"",'])
def test_a_json_body_of_countless_values_holds_up_nobody(value: bytes) -> None:
    async def read_it() -> float:
        async with busiest_turn() as busiest:
            assert await target_in_json(b'{"command": [' + value * (4_000_000 // len(value)) + b'""]}') == Target()
        return busiest.seconds

    assert asyncio.run(read_it()) < MAX_S


def field(name: str, value: str, more: str = "") -> bytes:
    return f'--cut\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n{value}\r\n'.encode()


FILE = field("file", "hello", '; filename="up.txt"')
END = b"--cut--\r\n"


def read(*pieces: bytes, kind: str = "multipart/form-data; boundary=cut") -> Target:
    async def coming() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece

    return asyncio.run(target_in_form(coming(), kind))


@pytest.mark.parametrize(
    ("form", "session_id", "thread_id"),
    [
        (field("session_id", "a") + FILE + END, "a", ""),
        (FILE + field("session_id", "a") + END, "a", ""),
        (field("thread_id", "t") + FILE + END, "", "t"),
        (field("thread_id", "t") + field("session_id", "a") + FILE + END, "a", "t"),
        (field("session_id", "") + field("thread_id", "t") + FILE + END, "", "t"),
        (field("session_id", "a").replace(b"Content-Disp", b"content-disp") + END, "a", ""),
        (field("session_id", "a").replace(b'"', b"") + END, "a", ""),
        (field("session_id", "a").replace(b"\r\n\r\n", b"\r\nContent-Type: text/plain\r\n\r\n") + END, "a", ""),
        (field("session_id", "ünï") + END, "ünï", ""),
        (field("session_id", "evil", '; filename="x"') + field("session_id", "a") + END, "a", ""),
        (field("file", field("session_id", "evil").decode().replace("cut", "not")) + field("thread_id", "t"), "", ""),
        (FILE + END, "", ""),
        (field("session", "a") + END, "", ""),
        (field("session_id", "a")[:-4], "", ""),
        (b"", "", ""),
    ],
)
def test_a_session_in_a_form_in_whatever_pieces_it_comes(form: bytes, session_id: str, thread_id: str) -> None:
    for size in (1, 7, len(form) or 1):
        assert read(*(form[at : at + size] for at in range(0, len(form), size))) == Target(session_id, thread_id)


def test_no_more_of_a_form_is_read_than_is_needed() -> None:
    taken = []

    async def coming() -> AsyncIterator[bytes]:
        for piece in (field("session_id", "a"), FILE[:20], b"more"):
            taken.append(piece)
            yield piece

    assert asyncio.run(target_in_form(coming(), "multipart/form-data; boundary=cut")) == Target("a")
    assert len(taken) == 2


@pytest.mark.parametrize("kind", ["", "text/plain", "multipart/form-data", "multipart/form-data; boundary=\xff"])
def test_a_form_without_a_boundary_names_nothing(kind: str) -> None:
    assert read(field("session_id", "a") + END, kind=kind) == Target()


@pytest.mark.parametrize(
    "fill", [b"x", b"Content-Disposition:", b'Content-Disposition: name="session_id"\r\n', b"\r\n--cu"]
)
def test_what_is_in_a_large_file_is_not_looked_through_again_and_again(fill: bytes) -> None:
    head = b'--cut\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\n'
    piece = (fill * (65536 // len(fill) + 1))[:65536]
    assert read(head, *([piece] * 140), b"\r\n" + field("session_id", "a") + END) == Target("a")


# Whatever comes.

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["session_id", "thread_id", "labels"]) | st.text(), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(st.binary(max_size=300))
@example(b"\xef\xbb\xbf{}")
@example(b"\xff\xfe{\x00}\x00")
def test_no_body_is_too_strange(body: bytes) -> None:
    for asked in (asyncio.run(target_in_json(body)), read(body), target_in_query(scope("GET", "/list_files", body))):
        assert isinstance(asked.session_id, str)
        assert isinstance(asked.thread_id, str)
        assert isinstance(asked.values, dict)


@given(_JSON)
def test_no_json_is_too_strange(value: Any) -> None:
    asked = asyncio.run(target_in_json(json.dumps(value).encode()))
    named = value.get("session_id") if isinstance(value, dict) else None
    assert asked.session_id == (named if isinstance(named, str) else "")


@given(st.text(max_size=80), st.sampled_from(["GET", "POST", "DELETE", "WHATEVER"]))
def test_no_path_is_too_strange(text: str, method: str) -> None:
    for path in (text, f"/api/sessions/{text}", f"/api/e2b/files/{text}"):
        found = FINDER.find(method, path)
        if found is not None and found[0].session_in is SessionIn.PATH:
            assert found[1]["session_id"]
            assert "/" not in found[1]["session_id"]


@given(st.binary(max_size=200))
def test_a_form_with_its_field_first_is_understood_whatever_the_file_is(content: bytes) -> None:
    head = b'--cut\r\nContent-Disposition: form-data; name="file"\r\n\r\n'
    assert read(field("session_id", "ses_1") + head + content) == Target("ses_1")
