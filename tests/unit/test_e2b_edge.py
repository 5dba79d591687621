"""What the edge for E2B's clients recognises, whom it lets in, and in which form requests reach the rest."""

import asyncio
import base64
import gc
import hashlib
import itertools
import json
import time
import tracemalloc
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

import pytest
from busiest_turn import MAX_S, busiest_turn, own_memory
from contract.store_values import a_session
from this_run import patience

from warren.access.keys import Keys
from warren.access.tenants import Tenants
from warren.http.e2b.addresses import E2bAddresses
from warren.http.e2b.callers import E2bCallers
from warren.http.e2b.errors import ShapedAnswer
from warren.http.e2b.tokens import Opens, SandboxTokens, Upload
from warren.http.problems import MEDIA_TYPE, problem
from warren.http.request import Kind, Request
from warren.http.server.http_guard import BARE
from warren.http.server.request_origin import TrustedProxies
from warren.model.access import NO_QUOTA
from warren.model.e2b import sandbox_id_of
from warren.model.errors import ImageBuilding, PortClosed, SessionEnded, TooLarge, Unauthorized, WarrenError
from warren.model.session import SessionState, new_session_id
from warren.stores.memory import MemoryStore
from warren.testing.manual_clock import ManualClock

pytestmark = pytest.mark.anyio

DOMAIN = "preview.example.com"
LOCAL = {"host": "127.0.0.1:8000"}


@dataclass
class Answer:
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class World:
    """What recognises and identifies E2B's clients, before an app that keeps each request that reaches it, or fails."""

    def __init__(self, *, without_keys: bool = False, domain: str = DOMAIN) -> None:
        self.clock = ManualClock()
        self.store = MemoryStore()
        self.tokens = SandboxTokens([b"k" * 32])
        self.seen: list[Request] = []
        self.failure: WarrenError | None = None
        self.fails_after_s = 0.0
        self.own_problem = b""
        self.of_e2b_sandbox = False
        self.addresses = E2bAddresses(self.tokens, domain)
        self.callers = E2bCallers(
            self.tokens,
            self.store,
            Tenants(self.store.records, self.clock),
            Keys(self.store.records, self.clock),
            self.clock,
            without_keys=without_keys,
        )
        self.proxies = TrustedProxies(["10.0.0.0/8"])

    async def _serve(self, request: Request, receive: Any, send: Any) -> None:
        self.addresses.recognise(request)
        if request.refused is not None:
            await request.refused(request.scope, receive, send)
            return
        if request.show_error is not None:
            shaped = ShapedAnswer(send, request)
            shaped._began -= self.fails_after_s
            send = shaped.send
        self.proxies.apply(request.scope)
        try:
            if request.e2b is not None and not request.e2b.session_id and request.e2b.is_signed:
                await self.callers.find_session(request)
            if request.kind is Kind.E2B:
                request.known = await self.callers.find_caller(request)
        except WarrenError as exc:
            await problem(exc)(request.scope, receive, send)
            return
        request.shows_e2b_errors |= self.of_e2b_sandbox
        await self._app(request, receive, send)

    async def _app(self, request: Request, receive: Any, send: Any) -> None:
        self.seen.append(request)
        if self.failure is not None:
            await problem(self.failure)(request.scope, receive, send)
            return
        if self.own_problem:
            headers = [(b"content-type", MEDIA_TYPE.encode())]
            await send({"type": "http.response.start", "status": 418, "headers": headers, BARE: True})
            await send({"type": "http.response.body", "body": self.own_problem})
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"reached"})

    async def session(self, tenant: str = "acme") -> str:
        session = a_session(
            id=new_session_id(), tenant=tenant, thread_id="", state=SessionState.RUNNING, key_id="key_1"
        )
        await self.store.add(session)
        return session.id

    def access(self, session_id: str) -> str:
        return self.tokens.sign(Opens.ACCESS, session_id)

    def traffic(self, session_id: str) -> str:
        return self.tokens.sign(Opens.TRAFFIC, session_id)

    async def ask(
        self,
        path: str,
        headers: Mapping[str, str] | list[tuple[str, str]] = LOCAL,
        method: str = "GET",
        query: str = "",
        client: str = "127.0.0.1",
        raw_path: bytes | None = None,
    ) -> Answer:
        pairs = headers if isinstance(headers, list) else list({**LOCAL, **headers}.items())
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode() if raw_path is None else raw_path,
            "query_string": query.encode(),
            "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in pairs],
            "client": (client, 1),
        }
        answer = Answer()

        async def receive() -> Any:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                answer.status = message["status"]
                answer.headers = {name.decode(): value.decode() for name, value in message["headers"]}
            else:
                answer.body += message.get("body", b"")

        await self._serve(Request(scope, dict(scope["headers"])), receive, send)
        return answer

    async def reached(self, *args: Any, **options: Any) -> Request:
        answer = await self.ask(*args, **options)
        assert (answer.status, answer.body) == (200, b"reached"), answer
        return self.seen[-1]

    async def refused(self, status: int, *args: Any, **options: Any) -> Any:
        before = len(self.seen)
        answer = await self.ask(*args, **options)
        assert answer.status == status, answer
        assert len(self.seen) == before
        assert answer.headers["content-type"] == "application/json"
        return answer.json


def _tenant(request: Request) -> str:
    assert request.known is not None
    return request.known.tenant


@pytest.fixture
def world() -> World:
    return World()


def signed(
    path: str,
    token: str,
    changed: Mapping[str, str] = {},
    *,
    operation: str = "read",
    user: str = "",
    expires_at: int | None = None,
) -> str:
    """A query as E2B's clients write it."""
    text = ":".join([path, operation, user, token, *([] if expires_at is None else [str(expires_at)])])
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")
    values = {"path": path, "username": user, "signature": f"v1_{digest}"}
    if expires_at is not None:
        values["signature_expiration"] = str(expires_at)
    return urlencode({name: value for name, value in {**values, **changed}.items() if value})


async def test_however_a_sandbox_is_addressed_the_request_has_one_inner_form(world: World) -> None:
    session_id = await world.session()
    sandbox, access, traffic = sandbox_id_of(session_id), world.access(session_id), world.traffic(session_id)
    by_id = {"E2b-Sandbox-Id": sandbox, "X-Access-Token": access}
    cases = (
        ("envd", "/files", {**by_id, "E2b-Sandbox-Port": "49983"}),
        ("envd", "/files", by_id),
        ("envd", "/files", {"X-Access-Token": access}),
        ("envd", "/files", {"X-Access-Token": access, "host": f"49983-{sandbox}.localhost:8000"}),
        ("envd", "/files", {"X-Access-Token": access, "host": f"49983-{sandbox}.{DOMAIN}"}),
        ("envd", "/files", {**by_id, "host": f"49983-{sandbox}.{DOMAIN.upper()}."}),
        ("code", "/execute", {**by_id, "E2b-Sandbox-Port": "49999"}),
        ("code", "/execute", by_id),
        ("code", "/contexts/1/restart", {"E2B-Traffic-Access-Token": traffic}),
        ("code", "/contexts", {"E2B-Traffic-Access-Token": traffic, "host": f"49999-{sandbox}.{DOMAIN}"}),
        ("envd", "/process.Process/Start", by_id),
    )
    for (plane, path, headers), prefix in itertools.product(cases, ("", "/e2b")):
        request = await world.reached(prefix + path, headers)
        assert request.scope["path"] == f"/e2b/{plane}/{session_id}{path}", (path, headers)
        caller = request.known
        assert caller is not None
        assert (caller.tenant, caller.key_id, sorted(caller.scopes)) == ("acme", "key_1", ["exec", "read"])
        assert access not in str(request.scope["headers"])
        assert traffic not in str(request.scope["headers"])
        assert DOMAIN not in str(request.scope["headers"]).lower()


async def test_the_control_plane_has_a_host_a_prefix_and_paths(world: World) -> None:
    for host, path in (
        (f"api.{DOMAIN}", "/anything/at/all"),
        ("api.localhost:8000", "/sandboxes"),
        ("127.0.0.1:8000", "/v2/sandboxes"),
        ("127.0.0.1:8000", "/e2b/sandboxes"),
        ("127.0.0.1:8000", "/templates/a"),
    ):
        request = await world.reached(path, {"host": host, "X-API-Key": "k"})
        assert request.scope["path"] == "/e2b/api" + path.removeprefix("/e2b")
        assert (b"x-api-key", b"k") in request.scope["headers"]
        assert request.known is None
    request = await world.reached("/sandboxes", {"host": "api.localhost:8000"})
    assert (b"host", b"localhost:8000") in request.scope["headers"]
    for path in ("/api/sessions", "/execute", "/files", "/health", "/", "/sandboxesx", "//e2b/envd/x/files"):
        assert (await world.reached(path)).scope["path"] == path


async def test_the_control_plane_is_told_where_its_client_finds_ports(world: World) -> None:
    forged = {"E2b-Sandbox-Domain": "evil.example"}
    for host, domain in (
        ("127.0.0.1:8000", DOMAIN),
        (f"api.{DOMAIN}", DOMAIN),
        (f"api.{DOMAIN}:8443", f"{DOMAIN}:8443"),
        ("api.localhost:8443", "localhost:8443"),
    ):
        request = await world.reached("/sandboxes", {"host": host, **forged})
        assert [value for name, value in request.scope["headers"] if name == b"e2b-sandbox-domain"] == [domain.encode()]
    alone = World(domain="")
    for host, domain in (
        ("127.0.0.1:8000", "localhost:8000"),
        ("[::1]", "localhost"),
        ("a.example:80", "a.example:80"),
    ):
        request = await alone.reached("/e2b/sandboxes", {"host": host, **forged})
        assert (b"e2b-sandbox-domain", domain.encode()) in request.scope["headers"]
        assert "evil" not in str(request.scope["headers"])


async def test_old_clients_name_the_sandbox_to_the_control_plane_when_they_connect(world: World) -> None:
    sandbox = sandbox_id_of(await world.session())
    named = {"X-API-Key": "k", "E2b-Sandbox-Id": sandbox, "E2b-Sandbox-Port": "49983"}
    for path in (f"/sandboxes/{sandbox}/connect", f"/e2b/sandboxes/{sandbox}/connect"):
        request = await world.reached(path, named, "POST")
        assert request.scope["path"] == f"/e2b/api/sandboxes/{sandbox}/connect"
        assert (b"x-api-key", b"k") in request.scope["headers"]
        assert request.known is None


async def test_what_is_encoded_in_a_path_stays_encoded(world: World) -> None:
    for prefix in ("", "/e2b"):
        request = await world.reached(f"{prefix}/templates/a/b c", raw_path=f"{prefix}/templates/a%2Fb%20c".encode())
        assert request.scope["raw_path"] == b"/e2b/api/templates/a%2Fb%20c"
        assert request.scope["path"] == "/e2b/api/templates/a/b c"
    request = await world.reached("/e2b/templates/a b?", raw_path=b"/%65%32b/templates/a%20b%3F")
    assert request.scope["raw_path"] == b"/e2b/api/templates/a%20b%3F"


async def test_nobody_outside_can_send_an_inner_path(world: World) -> None:
    session_id = await world.session()
    for path, raw_path in (
        (f"/e2b/envd/{session_id}/files", None),
        (f"/e2b/code/{session_id}/execute", None),
        (f"/e2b/envd/{session_id}/files", f"/e2b%2Fenvd%2F{session_id}%2Ffiles".encode()),
        (f"/e2b/envd/{session_id}/files", f"/%65%32%62/envd/{session_id}/files".encode()),
        (f"/e2b/e2b/envd/{session_id}/files", None),
    ):
        request = await world.reached(path, {"X-API-Key": "k"}, raw_path=raw_path)
        assert request.scope["path"] == "/e2b/api" + path.removeprefix("/e2b")
        assert request.known is None
    for path in (f"//e2b/envd/{session_id}/files", f"/E2B/envd/{session_id}/files", f"/./e2b/envd/{session_id}/files"):
        assert (await world.reached(path)).scope["path"] == path
    request = await world.reached(
        f"/e2b/envd/{session_id}/files", {"host": f"3000-{sandbox_id_of(session_id)}.{DOMAIN}"}
    )
    assert request.scope["path"] == f"/e2b/envd/{session_id}/files"  # a preview's, whose edge makes another path of it
    assert request.known is None


async def test_only_its_own_token_opens_a_sandbox(world: World) -> None:
    mine, other = await world.session(), await world.session("umbrella")
    by_id = {"E2b-Sandbox-Id": sandbox_id_of(mine)}
    access = world.access(mine)
    wrong = (
        {},
        {"X-Access-Token": world.access(other)},
        {"X-Access-Token": world.traffic(mine)},
        {"E2B-Traffic-Access-Token": world.traffic(mine)},
        {"X-Access-Token": access[:-1] + ("0" if access[-1] != "0" else "1")},
        {"X-Access-Token": access.upper()},
        {"X-Access-Token": access + " "},
        {"X-Access-Token": f"wet_{sandbox_id_of(mine)}_{'0' * 40}"},
        {"X-Access-Token": SandboxTokens([b"x" * 32]).sign(Opens.ACCESS, mine)},
        {"X-Access-Token": "\xff"},
        {"Authorization": f"Bearer {access}"},
        {"X-API-Key": access},
    )
    for headers in wrong:
        assert (await world.refused(401, "/files", by_id | headers))["code"] == 401
        call = await world.refused(401, "/process.Process/List", by_id | headers, method="POST")
        assert call["code"] == "unauthenticated"
    for headers in ({}, {"E2B-Traffic-Access-Token": world.traffic(other)}, {"E2B-Traffic-Access-Token": access}):
        await world.refused(401, "/contexts", by_id | headers | {"E2b-Sandbox-Port": "49999"})
    gone = {"sandboxId": "0" * 32, "message": "The sandbox was not found", "code": 502}
    nobody = f"ses_{'0' * 32}"
    assert await world.refused(502, "/files", {"X-Access-Token": world.access(nobody)}) == gone
    assert await world.refused(502, "/health", {"E2b-Sandbox-Id": "0" * 32}) == gone
    for forged in ("x", "ses_" + "0" * 32, "A" * 32, "0" * 33, "../" + "0" * 29):
        answer = await world.refused(502, "/health", {"E2b-Sandbox-Id": forged})
        assert answer["message"] == "The sandbox was not found"
    caller = (await world.reached("/health", by_id)).known
    assert caller is not None
    assert (caller.tenant, caller.scopes, caller.quota, caller.key_quota) == ("acme", frozenset(), NO_QUOTA, NO_QUOTA)


async def test_a_request_that_names_two_sandboxes_is_refused(world: World) -> None:
    mine, other = await world.session(), await world.session()
    token = ("X-Access-Token", world.access(mine))
    host = ("host", "127.0.0.1:8000")
    ids = [("E2b-Sandbox-Id", sandbox_id_of(one)) for one in (mine, other)]
    for pair in (ids, ids[::-1], [ids[0], ids[0]]):
        await world.refused(400, "/files", [host, *pair, token])
    await world.refused(400, "/files", [host, token, ("X-Access-Token", world.access(other))])
    await world.refused(400, "/files", [host, ids[0], token, ("E2b-Sandbox-Port", "49983"), ("E2b-Sandbox-Port", "1")])
    for port in ("49983", "3000"):
        await world.refused(400, "/files", [("host", f"{port}-{ids[0][1]}.{DOMAIN}"), ids[1], token])
    for port in ("0", "65536", "049983", "x", "-1"):
        await world.refused(400, "/files", [host, ids[0], token, ("E2b-Sandbox-Port", port)])


async def test_without_keys_a_token_may_be_missing_but_not_wrong() -> None:
    world = World(without_keys=True)
    session_id, other = await world.session(), await world.session()
    by_id = {"E2b-Sandbox-Id": sandbox_id_of(session_id)}
    assert _tenant(await world.reached("/files", by_id)) == "acme"
    await world.refused(401, "/files", by_id | {"X-Access-Token": world.access(other)})
    await world.refused(401, "/files", by_id, query=signed("/a", world.access(other)))


async def test_the_user_of_a_sandbox_is_no_credential_and_stays(world: World) -> None:
    session_id = await world.session()
    headers = {"X-Access-Token": world.access(session_id), "Authorization": "Basic dXNlcjo=", "Cookie": "a=1"}
    request = await world.reached("/process.Process/List", headers, method="POST")
    assert (b"authorization", b"Basic dXNlcjo=") in request.scope["headers"]
    assert not any(name == b"cookie" for name, _ in request.scope["headers"])


async def test_other_ports_are_previews_and_a_traffic_token_is_checked_for_them(world: World) -> None:
    mine, other = await world.session(), await world.session()
    sandbox = sandbox_id_of(mine)
    by_header = {"E2b-Sandbox-Id": sandbox, "E2b-Sandbox-Port": "3000"}
    by_host = {"host": f"3000-{sandbox}.{DOMAIN}"}
    for headers in (by_header, by_host):
        for path in ("/", "/e2b/x", "/sandboxes", "/files"):
            request = await world.reached(path, headers)
            assert request.scope["path"] == path
            assert (b"host", f"3000-{sandbox}.{DOMAIN}".encode()) in request.scope["headers"]
            assert not request.traffic_token
            assert request.known is None
        right, wrong = world.traffic(mine), (world.traffic(other), world.access(mine), "x")
        assert (await world.reached("/", headers | {"E2B-Traffic-Access-Token": right})).traffic_token is True
        for token in wrong:
            assert (await world.reached("/", headers | {"E2B-Traffic-Access-Token": token})).traffic_token is False


async def test_errors_of_ports_have_the_form_that_clients_of_e2b_read(world: World) -> None:
    session_id = await world.session()
    sandbox = sandbox_id_of(session_id)
    by_header = {"E2b-Sandbox-Id": sandbox, "E2b-Sandbox-Port": "3000"}
    world.failure = PortClosed("nothing listens")
    closed = {"sandboxId": sandbox, "message": "The sandbox is running but port is not open", "port": 3000, "code": 502}
    answer = await world.ask("/", by_header)
    assert (answer.status, answer.json) == (502, closed)
    world.failure = SessionEnded("over")
    answer = await world.ask("/", by_header)
    assert (answer.status, answer.json["message"]) == (502, "The sandbox was not found")
    world.failure = Unauthorized("private")
    answer = await world.ask("/", by_header)
    assert (answer.status, answer.json["code"], answer.json["sandboxId"]) == (403, 403, sandbox)
    native = await world.ask("/", {"host": f"3000-{sandbox}.{DOMAIN}"})
    assert (native.status, native.json["code"]) == (401, "unauthorized")


async def test_problems_of_the_server_get_the_form_of_their_plane(world: World) -> None:
    session_id = await world.session()
    token = {"X-Access-Token": world.access(session_id)}
    world.failure = TooLarge("too much", remedy="send less")
    for path, headers, code in (
        ("/sandboxes", {}, 413),
        ("/files", token, 413),
        ("/execute", token, 413),
        ("/process.Process/List", token, "invalid_argument"),
    ):
        answer = await world.ask(path, headers, method="POST")
        assert answer.json == {"code": code, "message": "too much; send less"}
        assert answer.headers["content-type"] == "application/json"
        assert int(answer.headers["content-length"]) == len(answer.body)
    world.failure = SessionEnded("over")
    assert (await world.ask("/files", token)).json["message"] == "The sandbox was not found"
    assert (await world.ask(f"/sandboxes/{sandbox_id_of(session_id)}")).status == 404


async def test_a_signed_url_finds_its_sandbox_by_its_signature(world: World) -> None:
    ids = [await world.session() for _ in range(300)]
    session_id = ids[170]
    token = world.access(session_id)
    for path, user in (("/home/user/a.txt", ""), ("a b+c&d%/é", "root"), ("x:read::y", "")):
        query = signed(path, token, user=user)
        for method in ("GET", "HEAD"):
            request = await world.reached("/files", query=query, method=method)
            assert request.scope["path"] == f"/e2b/envd/{session_id}/files"
            assert request.scope["query_string"] == query.encode()
        await world.refused(401, "/files", query=query, method="POST")
        writing = signed(path, token, operation="write", user=user)
        assert _tenant(await world.reached("/e2b/files", query=writing, method="POST")) == "acme"
        await world.refused(401, "/files", query=writing)
        for changed in ({"path": path + "x"}, {"username": user + "x"}, {"signature": "v1_x"}, {"signature": "\xff"}):
            await world.refused(401, "/files", query=signed(path, token, changed, user=user))
    for headers in (
        {"host": f"49983-{sandbox_id_of(session_id)}.{DOMAIN}"},
        {"E2b-Sandbox-Id": sandbox_id_of(session_id)},
    ):
        await world.reached("/files", headers, query=signed("/a", token))
        await world.refused(401, "/files", headers, query=signed("/a", world.access(ids[0])))
        await world.refused(401, "/process.Process/List", headers, query=signed("/a", token), method="POST")
    gone = signed("/a", world.access(new_session_id()))
    assert (await world.refused(401, "/files", query=gone))["message"].startswith("invalid signature")


async def test_a_client_that_has_waited_in_vain_is_asked_not_to_repeat_its_request(world: World) -> None:
    world.failure = ImageBuilding(
        "the image is being built",
        remedy="try again",
        retry_after_s=2.0,
        step="step 1 of 2: run make",
        fraction=0.25,
        about="5 min",
        remaining_s=90.0,
    )
    soon = await world.ask("/sandboxes", method="POST")
    assert soon.json == {
        "code": 503,
        "message": "the image is being built (step 1 of 2: run make, 25%); try again",
        "error_code": "image_building",
        "progress": {"step": "step 1 of 2: run make", "fraction": 0.25, "about": "5 min", "remaining_s": 90.0},
    }
    assert (soon.headers["retry-after"], "should-retry" in soon.headers) == ("2", False)
    world.fails_after_s = 45.0
    late = await world.ask("/sandboxes", method="POST")
    assert (late.json, late.headers["retry-after"], late.headers["should-retry"]) == (soon.json, "2", "false")
    world.failure = TooLarge("too much")
    assert "should-retry" not in (await world.ask("/sandboxes", method="POST")).headers


async def test_a_signed_url_expires(world: World) -> None:
    session_id = await world.session()
    token, now = world.access(session_id), round(world.clock.wall())
    query = signed("/a", token, expires_at=now + 10)
    await world.reached("/files", query=query)
    await world.refused(401, "/files", query=query.replace(str(now + 10), str(now + 99)))
    await world.refused(401, "/files", query=query.partition("&signature_expiration")[0])
    world.clock.set_wall(now + 11)
    refusal = await world.refused(401, "/files", query=query)
    assert refusal["message"] == "signature is already expired"
    for odd in ("0x10", "1e9", " ", "9" * 30, "-"):
        await world.refused(401, "/files", query=query.replace(str(now + 10), odd))


async def test_forged_signatures_wait_for_each_other_and_cost_others_nothing(world: World) -> None:
    session_id = await world.session()
    for _ in range(3000):
        await world.session()
    query = signed("/a", world.access(session_id))
    async with busiest_turn() as busiest:
        forged = [
            asyncio.create_task(world.ask("/files", query=signed("/a", f"wet_{number}"), client="192.0.2.1"))
            for number in range(40)
        ]
        await asyncio.sleep(0)
        assert (await world.ask("/files", query=query)).status == 200
        answers = await asyncio.gather(*forged)
    assert busiest.seconds < MAX_S
    assert sorted(each.status for each in answers) == [401] * 8 + [429] * 32
    with own_memory():
        began = time.thread_time()
        await world.reached("/files", query=query)  # it is remembered
        assert time.thread_time() - began < patience(0.01)
    through_proxy = {"X-Forwarded-For": "192.0.2.7"}
    assert (await world.ask("/files", through_proxy, query=signed("/a", "x"), client="10.0.0.1")).status == 401


async def test_a_preview_of_a_sandbox_of_an_e2b_client_answers_in_its_form(world: World) -> None:
    sandbox = sandbox_id_of(await world.session())
    world.of_e2b_sandbox = True
    world.failure = PortClosed("nothing listens")
    answer = await world.ask("/", {"host": f"8080-{sandbox}.localhost"})
    assert (answer.status, answer.json["port"]) == (502, 8080)


async def test_what_a_sandbox_answers_passes_as_it_is_even_if_it_is_a_problem(world: World) -> None:
    session_id = await world.session()
    host = {"host": f"3000-{sandbox_id_of(session_id)}.{DOMAIN}", "E2B-Traffic-Access-Token": world.traffic(session_id)}
    world.own_problem = b'{"detail": "of the sandbox"}'
    answer = await world.ask("/", host)
    assert (answer.status, answer.headers["content-type"], answer.body) == (418, MEDIA_TYPE, world.own_problem)


async def test_signed_urls_that_were_found_take_little_memory_however_long_their_paths_are(world: World) -> None:
    session_id = await world.session()
    token, path = world.access(session_id), "/" + "x" * 50_000
    tracemalloc.start()
    try:
        for number in range(100):
            await world.reached("/files", query=signed(f"{path}{number}", token))
            world.seen.clear()
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] < 1024 * 1024
    finally:
        tracemalloc.stop()


async def test_a_query_of_very_many_parameters_costs_nothing_before_somebody_is_let_in(world: World) -> None:
    many = "&a=b" * 14_000
    upload = world.tokens.sign_upload(Upload(int(time.time()) + 60, "acme", "key_1", "ab" * 16))
    began = time.process_time()
    for _ in range(20):
        await world.refused(401, "/files", query=f"signature=v1_x{many}")
        await world.refused(401, f"/templates/uploads/{'ab' * 16}", method="PUT", query=f"token={upload}{many}")
    assert time.process_time() - began < patience(0.2)
    await world.reached(f"/templates/uploads/{'ab' * 16}", method="PUT", query=f"token={upload}")
