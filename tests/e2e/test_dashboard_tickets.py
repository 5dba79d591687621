"""Tickets: they open one terminal to a page without a key, once, and nothing else."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import aiohttp
import pytest
from e2e.api_client import Api, SessionApi, Socket
from e2e.browser_page import Page
from e2e.conftest import NewState
from e2e.dashboard_place import ADMIN, EMBEDDER, KINDS, Place, new_key, policy_of, running_place

pytestmark = pytest.mark.anyio

SITE = "https://app.example.com"
_ENDS_S = 20


@pytest.fixture(scope="module", params=KINDS)
def place(request: pytest.FixtureRequest, new_state: NewState) -> Iterator[Place]:
    with running_place(request.param, new_state) as place:
        yield place


@pytest.fixture
def url(place: Place) -> str:
    return place.server.url


@pytest.fixture
async def admin(url: str) -> AsyncIterator[Api]:
    async with Api(url, {"X-API-Key": ADMIN}) as api:
        yield api


@pytest.fixture
async def key(admin: Api) -> dict[str, Any]:
    return await new_key(admin)


@pytest.fixture
async def session(url: str, key: dict[str, Any]) -> AsyncIterator[SessionApi]:
    """With a command that repeats what it is told, in the process `talk`."""
    async with Api(url, {"X-API-Key": key["key"]}) as api, api.session() as session:
        await session.start("cat", process_id="talk")
        yield session


async def redeem(url: str, ticket: str) -> dict[str, Any]:
    """As the embedded page does: its origin is this server's."""
    async with Api(url, {"Origin": url}) as api:
        found: dict[str, Any] = await api.post("/api/ui/tickets/redeem", {"ticket": ticket})
        return found


async def token_for(session: SessionApi, url: str, **wanted: Any) -> str:
    made = await session.post("/tickets", wanted, status=201)
    return str((await redeem(url, made["ticket"]))["token"])


@contextlib.asynccontextmanager
async def attached(url: str, session_id: str, token: str, *, origin: str = "") -> AsyncIterator[Socket]:
    place = f"{url}/api/sessions/{session_id}/processes/talk/attach"
    protocols = ("warren", f"warren.token.{token}")
    headers = {"Origin": origin or url}
    async with aiohttp.ClientSession() as http, http.ws_connect(place, protocols=protocols, headers=headers) as raw:
        assert raw.protocol == "warren"
        yield Socket(raw)


async def test_a_ticket_opens_its_terminal_once(place: Place, session: SessionApi) -> None:
    made = await session.post("/tickets", {"process_id": "talk", "expires_in_s": 600}, status=201)
    assert made["url"] == f"{place.server.url}/embed/terminal?ticket={made['ticket']}"
    urls = [place.server.url, place.other.url] * 5
    tried = await asyncio.gather(*(redeem(each, made["ticket"]) for each in urls), return_exceptions=True)
    [found] = [one for one in tried if not isinstance(one, BaseException)]
    assert (found["session_id"], found["process_id"], found["read_only"]) == (session.id, "talk", False)
    assert found["expires_at"] == made["expires_at"]
    async with Api(place.server.url) as api:
        for wrong in (made["ticket"], found["token"], "wtk_" + "A" * 43, ""):
            await api.refused("POST", "/api/ui/tickets/redeem", {"ticket": wrong}, status=401, code="unauthorized")
    async with attached(place.other.url, session.id, found["token"]) as socket:
        await socket.expect("started")
        await socket.raw.send_bytes(b"hello\n")
        assert (await socket.expect("output"))["data"] == "hello\n"
    async with Api(place.server.url, {"Authorization": f"Bearer {found['token']}"}) as api:
        assert (await api.get(f"/api/sessions/{session.id}/processes/talk"))["running"] is True
        output = await api.get(f"/api/sessions/{session.id}/processes/talk/output")
        assert "hello" in str(output)


async def test_a_token_opens_nothing_but_its_terminal(url: str, key: dict[str, Any], session: SessionApi) -> None:
    token = await token_for(session, url, process_id="talk")
    await session.start("cat", process_id="other")
    mine = f"/api/sessions/{session.id}"
    async with Api(url, {"Authorization": f"Bearer {token}", "Origin": url, "X-Warren-Page": "1"}) as api:
        for method, path, body in (
            ("GET", "/api/whoami", None),
            ("GET", "/api/sessions", None),
            ("GET", mine, None),
            ("DELETE", mine, None),
            ("POST", f"{mine}/exec", {"command": "id"}),
            ("POST", f"{mine}/tickets", {}),
            ("GET", f"{mine}/processes", None),
            ("GET", f"{mine}/processes/other", None),
            ("POST", f"{mine}/processes/talk/kill", {}),
            ("POST", f"{mine}/processes/talk/stdin", {"data": "x"}),
            ("GET", f"{mine}/files?path=.", None),
            ("POST", "/api/ui/links", None),
            ("POST", "/api/ui/sign-out-everywhere", None),
            ("GET", f"/api/sessions/ses_{'0' * 32}/processes/talk", None),
            ("GET", f"{mine}/processes/other%2F..%2Ftalk", None),
        ):
            await api.refused(method, path, body, status=403, code="forbidden")
        await api.refused("POST", "/api/ui/sign-in", {"key": token}, status=401, code="unauthorized")
        await api.refused("GET", f"{mine}/ports/3000/", status=401, code="unauthorized")
        await api.refused("POST", "/execute", {"command": "id"}, status=401, code="unauthorized")
    for path in ("exec", "code", "terminal", "terminal?process_id=other", "forward/1", "processes/other/attach"):
        assert await refused(url, f"{mine}/{path}", token) == 403, path
    async with Api(url, {"X-API-Key": key["key"]}) as api:
        gone = (await api.post(f"{mine}/tickets", {"process_id": "gone"}, status=201))["ticket"]
    protocols = ("warren", f"warren.token.{(await redeem(url, gone))['token']}")
    for start in ("", "&existing=false"):  # what is not there (any more) is not started either
        place = f"{url}{mine}/terminal?process_id=gone&command=id{start}"
        async with aiohttp.ClientSession() as http, http.ws_connect(place, protocols=protocols) as raw:
            assert (await Socket(raw).expect("error"))["code"] == "process_not_found"
    both = f"{mine}/terminal?process_id=talk&process_id=other"
    assert await refused(url, both, token) == 403
    assert await refused(url, f"{mine}/terminal?process_id=talk", token, Origin="https://evil.example") == 403
    assert await refused(url, f"{mine}/terminal?process_id=talk", "wst_" + "A" * 43) == 401


async def refused(url: str, path: str, token: str, **headers: str) -> int:
    protocols = ("warren", f"warren.token.{token}")
    try:
        sent = {"Origin": url, **headers}
        async with aiohttp.ClientSession() as http, http.ws_connect(url + path, protocols=protocols, headers=sent):
            return 101
    except aiohttp.WSServerHandshakeError as exc:
        return exc.status


async def test_who_only_watches_types_nothing(url: str, session: SessionApi) -> None:
    await session.refused("POST", "/tickets", {"read_only": True}, status=422, code="invalid_request")
    token = await token_for(session, url, process_id="talk", read_only=True)
    async with attached(url, session.id, token) as socket:
        await socket.expect("started")
        await socket.raw.send_bytes(b"typed\n")
        await socket.send("stdin", data="typed\n")
        await socket.send("kill")
        await session.post("/processes/talk/stdin", {"data": "shown\n"}, status=204)
        assert (await socket.expect("output"))["data"] == "shown\n"
    async with Api(url, {"Authorization": f"Bearer {token}"}) as api:
        place = f"/api/sessions/{session.id}/processes/talk/resize"
        await api.refused("POST", place, {"rows": 3, "columns": 3}, status=403, code="forbidden")
    # This socket resizes, and starts a command if there is no such process (any more).
    assert await refused(url, f"/api/sessions/{session.id}/terminal?process_id=talk&command=id", token) == 403
    assert (await session.get("/processes/talk"))["running"] is True


async def test_what_a_ticket_opened_ends_with_its_key(
    place: Place,
    admin: Api,
    key: dict[str, Any],
    session: SessionApi,
) -> None:
    other = await new_key(admin)
    async with Api(session.url, {"X-API-Key": other["key"]}) as api:
        unused = (await api.post("/tickets", {}, status=201))["ticket"]
        made = await api.post("/tickets", {"process_id": "talk"}, status=201)
    token = (await redeem(place.server.url, made["ticket"]))["token"]
    async with attached(place.other.url, session.id, token) as socket:
        await socket.expect("started")
        await admin.call("DELETE", f"/api/admin/keys/{other['id']}", status=204)
        async with asyncio.timeout(_ENDS_S):
            while not socket.raw.closed:
                await socket.raw.send_bytes(b"x\n")
                with contextlib.suppress(TimeoutError):
                    await socket.raw.receive(0.2)
        assert socket.raw.close_code == 4401
    async with Api(place.server.url) as api:
        await api.refused("POST", "/api/ui/tickets/redeem", {"ticket": unused}, status=401, code="unauthorized")
    assert await refused(place.server.url, f"/api/sessions/{session.id}/processes/talk/attach", token) == 401


async def test_a_ticket_says_who_may_show_its_page_in_a_frame(url: str, session: SessionApi) -> None:
    made = await session.post("/tickets", {"origins": [f"{SITE}:443/", "http://[::1]:8080"]}, status=201)
    operators = f"{EMBEDDER} http://localhost:3000"
    page = Page(url, "wps_" + "A" * 43)
    for query, allowed in (
        (made["url"].partition("?")[2], f"{operators} {SITE} http://[::1]:8080"),
        ("ticket=wtk_unknown", operators),
        ("", operators),
    ):
        async with page.api({"Accept": "text/html"}) as api, api.ask("GET", f"/embed/terminal?{query}") as answer:
            text = await answer.text()
            assert (answer.status, answer.content_type) == (200, "text/html")
            rules = policy_of(answer.headers)
            assert rules["frame-ancestors"] == allowed
            assert (rules["default-src"], rules["trusted-types"]) == ("'none'", "warren")
            assert "X-Frame-Options" not in answer.headers
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            assert (answer.headers["Referrer-Policy"], answer.headers["Cache-Control"]) == ("no-referrer", "no-store")
            assert "Set-Cookie" not in answer.headers
            assert made["ticket"] not in text
    assert (await redeem(url, made["ticket"]))["session_id"] == session.id  # looking at the page did not use it up


@pytest.mark.parametrize(
    "origin",
    [
        "*", "https://*", "https://*.example.com", "https:", "'self'", "data:", "null", "https://a.example/path",
        "https://a.example; script-src *", "https://a.example https://b.example", "https://a.example\r\nX: y",
        "javascript://a.example", "https://a.example:0", "https://a.example:99999", "https://u@a.example", "",
        "https://ä.example", "https://a..example", "https://[::g]", "https://" + "a" * 300,
    ],
)  # fmt: skip
async def test_what_is_no_origin_never_gets_into_the_policy(session: SessionApi, origin: str) -> None:
    await session.refused("POST", "/tickets", {"origins": [origin]}, status=422, code="invalid_request")
    await session.refused(
        "POST", "/tickets", {"origins": ["https://a.example"] * 17}, status=422, code="invalid_request"
    )
