"""Signing in to the dashboard, and what must not work: what a page of another site, or a thief, could try."""

import asyncio
import contextlib
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterator

import aiohttp
import pytest
from e2e.api_client import COMMENT, Api, until
from e2e.browser_page import SAME_ORIGIN, Page
from e2e.conftest import NewState
from e2e.dashboard_place import ADMIN, HOST, KINDS, Place, new_key, policy_of, running_place

pytestmark = pytest.mark.anyio

HTML = {"Accept": "text/html,application/xhtml+xml;q=0.9,*/*;q=0.8"}
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
async def page(url: str, admin: Api) -> Page:
    """Signed in with a key of its own."""
    page = Page(url)
    await page.sign_in(key=(await new_key(admin))["key"])
    return page


async def test_a_key_signs_a_page_in_until_it_signs_out(place: Place, admin: Api) -> None:
    made = await new_key(admin)
    page = Page(place.server.url)
    assert await page.account() is None
    found = await page.sign_in(key=made["key"])
    assert (found["tenant"], found["key_id"], found["cookie"]) == ("acme", made["id"], True)
    assert page.attributes == "Max-Age=43200; Path=/; Secure; HttpOnly; SameSite=Strict"
    async with page.api() as api, api.session() as session:
        assert (await api.get("/api/whoami"))["key_id"] == made["id"]
        assert await session.output("echo hi") == "hi\n"
        async with page.socket(f"/api/sessions/{session.id}/exec") as socket:
            await socket.raw.send_json({"command": "echo hi"})
            before, _ = await socket.end()
            assert before[-1]["data"] == "hi\n"
    assert await Page(place.other.url, page.cookie).account() == await page.account() is not None
    kept = page.cookie
    await page.sign_out()
    assert page.cookie == ""
    assert page.attributes.startswith("Max-Age=0; Path=/; Secure")
    assert await Page(place.server.url, kept).status(**SAME_ORIGIN) == 401
    [entry] = (await admin.get("/api/admin/audit", action="sign_out", key_id=made["id"]))["deeds"]
    assert entry["tenant"] == "acme"


async def test_a_link_signs_one_browser_in_once(place: Place, admin: Api) -> None:
    made = await new_key(admin)
    async with Api(place.server.url, {"X-API-Key": made["key"]}) as api:
        link = await api.post("/api/ui/links", status=201)
    start, _, code = link["url"].partition("#")
    assert start == f"{place.server.url}/ui/enter"
    pages = [Page(place.server.url), Page(place.other.url)]
    tried = await asyncio.gather(*(page.sign_in(code=code) for page in pages * 5), return_exceptions=True)
    won = [one for one in tried if not isinstance(one, BaseException)]
    assert [one["key_id"] for one in won] == [made["id"]]
    async with Page(place.server.url).api() as api:
        for wrong in (code, "wsc_" + "A" * 43, "x"):
            refused = await api.refused("POST", "/api/ui/sign-in", {"code": wrong}, status=401, code="unauthorized")
            assert "works once" in refused["detail"]


async def test_a_signed_in_page_makes_no_links_and_shows_no_secret(page: Page) -> None:
    async with page.api() as api:
        await api.refused("POST", "/api/ui/links", status=403, code="forbidden")
        assert page.cookie not in str(await api.get("/api/ui/session"))


async def test_signing_in_counts_as_a_request(url: str, admin: Api) -> None:
    key = (await new_key(admin, "hasty"))["key"]
    await admin.call("PUT", "/api/admin/tenants/hasty", {"quota": {"requests_per_minute": 3}})
    for _ in range(3):
        await Page(url).sign_in(key=key)
    async with Page(url).api() as api:
        await api.refused("POST", "/api/ui/sign-in", {"key": key}, status=429, code="rate_limited")


async def test_a_signed_in_page_makes_no_tickets_that_would_outlive_it(page: Page) -> None:
    async with page.api() as api, api.session() as session:
        await session.refused("POST", "/tickets", {}, status=403, code="forbidden")


@pytest.mark.parametrize("path", ["/api/ui/sign-in", "/api/ui/sign-out", "/api/ui/tickets/redeem"])
@pytest.mark.parametrize("chunked", [False, True])
async def test_who_has_no_key_cannot_fill_the_memory(url: str, path: str, chunked: bool) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b'{"key": "' + b"x" * (128 << 10)

    body = pieces() if chunked else b'{"key": "' + b"x" * (128 << 10)
    sent = {"Content-Type": "application/json", "X-Warren-Page": "1"}
    async with aiohttp.ClientSession() as http, http.post(url + path, data=body, headers=sent) as answer:
        # Signing out reads no body at all.
        assert answer.status == (204 if path.endswith("sign-out") else 413), await answer.text()


@pytest.mark.parametrize("key", ["wrong", "wk_0011223344556677_00", "e2b_" + "0" * 80, "a.b.c", "x" * 9000, "ü"])
async def test_every_wrong_key_gets_the_same_answer_and_no_cookie(url: str, key: str) -> None:
    async with Page(url).api() as api, api.ask("POST", "/api/ui/sign-in", {"key": key}) as answer:
        problem = await answer.json(content_type=None)
        assert (answer.status, problem["detail"]) == (401, "this API key is not known here")
        assert problem["remedy"].startswith("paste all of it")
        assert "Bearer" not in problem["remedy"]
        assert "Set-Cookie" not in answer.headers


async def test_a_page_over_plain_http_keeps_its_key_itself(place: Place, admin: Api) -> None:
    """A browser would drop a Secure cookie there, and the page has to know."""
    made = await new_key(admin)
    code = (await admin.post("/api/ui/links", status=201))["url"].partition("#")[2]
    lan = {"Host": HOST, "Origin": f"http://{HOST}"}
    async with Page(place.server.url).api({"X-Warren-Page": "1"}) as api:
        async with api.ask("POST", "/api/ui/sign-in", {"key": made["key"]}, headers=lan) as answer:
            assert (answer.status, (await answer.json())["cookie"]) == (200, False)
            assert "Set-Cookie" not in answer.headers
        refused = await api.refused(
            "POST", "/api/ui/sign-in", {"code": code}, headers=lan, status=422, code="invalid_request"
        )
        assert "HTTPS" in refused["detail"]
        over_tls = {"Host": HOST, "Origin": f"https://{HOST}"}
        async with api.ask("POST", "/api/ui/sign-in", {"code": code}, headers=over_tls) as answer:
            assert (answer.status, (await answer.json())["cookie"]) == (200, True)


# -- other sites


FOREIGN_READS: dict[str, dict[str, str]] = {
    "another site": {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"},
    "a neighbour, such as a preview": {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors"},
    "a link on another site": {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"},
    "a neighbour that pretends": {"Sec-Fetch-Site": "same-site", "X-Warren-Page": "1"},
    "no page at all": {},
    "an old browser's image": {"Accept": "image/*"},
    "an address that was not opened": {"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "no-cors"},
    "a page without an origin": {"Origin": "null", "Sec-Fetch-Site": "cross-site"},
}


@pytest.mark.parametrize("sender", FOREIGN_READS)
async def test_what_others_read_with_the_cookie_is_refused(page: Page, sender: str) -> None:
    assert await page.status(**FOREIGN_READS[sender]) == 403
    assert await page.status(**SAME_ORIGIN) == 200
    assert await page.status(**{"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate"}) == 200


async def test_what_others_change_with_the_cookie_is_refused(page: Page) -> None:
    own = page.own_headers
    lacking: dict[str, dict[str, str]] = {
        f"without {name}": {key: value for key, value in own.items() if key != name}
        for name in ("Origin", "X-Warren-Page")
    }
    wrong = {
        "Origin": ["null", "https://evil.example", page.url.replace("127.0.0.1", "localhost"), f"{page.url}1"],
        "X-Warren-Page": ["0", "2", ""],
        "Sec-Fetch-Site": ["cross-site", "same-site", "none"],
    }
    for name, values in wrong.items():
        lacking |= {f"{name}: {value}": {**own, name: value} for value in values}
    for what, headers in lacking.items():
        for method, path in (("POST", "/api/sessions"), ("DELETE", f"/api/sessions/ses_{'0' * 32}")):
            assert await page.status(method, path, **headers) == 403, what
    forms = ("application/x-www-form-urlencoded", "text/plain", "multipart/form-data; boundary=x")
    for kind in forms:
        sent = {"Content-Type": kind, "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
        assert await page.status("POST", "/api/sessions", **sent) == 403
    async with page.api() as api:
        assert (await api.get("/api/sessions"))["sessions"] == []


async def test_other_sites_open_no_socket_with_the_cookie(page: Page, admin: Api) -> None:
    async with page.api() as api, api.session() as session:
        path = f"/api/sessions/{session.id}/terminal"
        for headers in (
            {},
            {"Origin": "https://evil.example"},
            {"Origin": "null"},
            {"Origin": page.url, "Sec-Fetch-Site": "same-site"},
            {"Origin": page.url.replace("127.0.0.1", "localhost")},
        ):
            assert await page.refused_socket(path, headers) == 403, headers
        assert await page.refused_socket(path, {"Origin": page.url, "Sec-Fetch-Site": "same-origin"}) == 101


async def test_no_other_site_signs_somebody_in_or_out(page: Page, admin: Api) -> None:
    made = await new_key(admin)
    for path, body in (("/api/ui/sign-in", {"key": made["key"]}), ("/api/ui/sign-out", None)):
        async with Api(page.url, {"Cookie": f"__Host-warren={page.cookie}"}) as api:
            for headers in ({}, {"Origin": "https://evil.example", "X-Warren-Page": "1"}, {"Origin": "null"}):
                async with api.ask("POST", path, body, headers=headers) as answer:
                    assert answer.status == 403
                    assert "Set-Cookie" not in answer.headers
    assert await page.status(**SAME_ORIGIN) == 200


# -- cookies


async def test_a_browser_never_goes_on_with_a_cookie_it_had_before(page: Page, admin: Api) -> None:
    """Somebody may have planted it: signing in gives another, and ends the session of the old one."""
    planted = page.cookie
    await page.sign_in(key=(await new_key(admin, "victim"))["key"])
    assert page.cookie != planted
    assert await Page(page.url, planted).status(**SAME_ORIGIN) == 401
    unknown = Page(page.url, "wps_" + "A" * 43)
    await unknown.sign_in(key=(await new_key(admin, "victim"))["key"])
    assert unknown.cookie != "wps_" + "A" * 43


@pytest.mark.parametrize(
    "cookies",
    [
        "warren={0}",
        "__host-warren={0}",
        "__Host-warren={0}; __Host-warren={0}",
        "__Host-warren={0}; __Host-warren=x",
        '__Host-warren="{0}"',
        "__Host-warren-preview={0}",
        "__Host-warren={0}x",
        "__Host-warren= ",
    ],
)
async def test_only_the_one_cookie_counts_and_only_alone(page: Page, cookies: str) -> None:
    async with Api(page.url, {"Cookie": cookies.format(page.cookie), **SAME_ORIGIN}) as api:
        await api.refused("GET", "/api/whoami", status=401, code="unauthorized")


async def test_a_key_in_a_header_counts_before_the_cookie(page: Page, admin: Api) -> None:
    other = await new_key(admin, "other")
    async with page.api({"X-API-Key": other["key"]}) as api:
        assert (await api.get("/api/whoami"))["tenant"] == "other"
    for wrong in ({"X-API-Key": "wrong"}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic eDp5"}):
        assert await page.status(**SAME_ORIGIN, **wrong) == 401


async def test_the_cookie_opens_no_preview_and_nothing_of_e2b(page: Page, url: str) -> None:
    async with page.api() as api, api.session() as session:
        label = session.id.removeprefix("ses_")
        port = url.rpartition(":")[2]
        by_path = f"/api/sessions/{session.id}/ports/3000/"
        opened = {"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate", **HTML}
        for headers in (SAME_ORIGIN, opened):
            assert await page.status("GET", by_path, **headers) == 401
            assert await page.status("GET", "/", **headers, Host=f"3000-{label}.localhost:{port}") == 401
            assert await page.status("GET", "/sandboxes", **headers) == 401
            assert await page.status("GET", "/v2/sandboxes", **headers) == 401


async def test_tenants_see_their_own_alone(url: str, admin: Api) -> None:
    mine, theirs = Page(url), Page(url)
    my_key = (await new_key(admin, "mine"))["key"]
    await mine.sign_in(key=my_key)
    await theirs.sign_in(key=(await new_key(admin, "theirs"))["key"])
    async with theirs.api() as api, api.session() as session, mine.api() as other:
        await other.refused("GET", f"/api/sessions/{session.id}", status=404, code="session_not_found")
        async with Api(url, {"X-API-Key": my_key}) as by_key:
            await by_key.refused(
                "POST", f"/api/sessions/{session.id}/tickets", {}, status=404, code="session_not_found"
            )
        await other.refused("GET", "/api/admin/keys", status=403, code="forbidden")
        assert (await other.get("/api/sessions"))["sessions"] == []


# -- the audit record


async def test_a_wrong_key_that_asks_who_it_is_is_recorded(url: str, admin: Api) -> None:
    async with Api(url, {"X-API-Key": "wrong"}) as api:
        assert (await api.get("/api/ui/session"))["account"] is None
    deeds = (await admin.get("/api/admin/audit", action="get_page_session"))["deeds"]
    assert [deed["result"] for deed in deeds] == ["unauthorized"]


async def test_a_page_that_stays_open_is_recorded_once_and_what_it_does_each_time(url: str, admin: Api) -> None:
    key = (await new_key(admin))["key"]
    browsers = [Page(url), Page(url)]
    async with Api(url, {"X-API-Key": key}) as direct, direct.session() as session:
        for browser in browsers:
            await browser.sign_in(key=key)
            async with browser.api() as api:
                for _ in range(3):
                    await api.get(f"/api/sessions/{session.id}")
                    await api.get(f"/api/sessions/{session.id}/processes")
                    await api.get("/api/metrics", session_ids=session.id)
                    await api.post(f"/api/sessions/{session.id}/exec", {"command": "true"})
        for _ in range(3):
            await direct.get(f"/api/sessions/{session.id}/ports")

        async def counted() -> Counter[str] | None:
            deeds = (await direct.get("/api/audit", session_id=session.id, limit=100))["deeds"]
            count = Counter(deed["action"] for deed in deeds)
            return count if count["run_command"] == 6 and count["list_ports"] == 3 else None

        count = await until(counted)
        assert (count["get_session"], count["list_processes"]) == (2, 2), count
        assert len((await direct.get("/api/audit", action="list_metrics"))["deeds"]) == 2
    async with browsers[0].api() as api:
        for _ in range(3):
            await api.refused("GET", "/api/sessions/ses_gone", status=404, code="session_not_found")

    async def refusals() -> bool:
        deeds = (await admin.get("/api/admin/audit", session_id="ses_gone", limit=100))["deeds"]
        return sum(deed["action"] == "get_session" for deed in deeds) == 3

    assert await until(refusals)


# -- the end of a key


async def test_a_stream_of_events_ends_in_order_and_says_that_the_key_is_gone(place: Place, admin: Api) -> None:
    made = await new_key(admin, "leaving")
    page = Page(place.other.url)
    await page.sign_in(key=made["key"])
    async with page.api() as api, api.events("GET", "/api/events") as events:
        assert (await anext(events)).kind == "ready"
        await admin.call("DELETE", f"/api/admin/keys/{made['id']}", status=204)
        async with asyncio.timeout(_ENDS_S):
            rest = [event async for event in events]  # a stream that is cut off raises here
    assert [(event.kind, event.data["status"]) for event in rest if event.kind != COMMENT] == [("error", 401)]


@pytest.mark.parametrize("way", ["revoked", "rotated", "everywhere"])
async def test_pages_of_a_key_are_signed_out_with_it_and_lose_what_is_open(place: Place, admin: Api, way: str) -> None:
    made = await new_key(admin)
    pages = [Page(place.server.url), Page(place.other.url)]
    for page in pages:
        await page.sign_in(key=made["key"])
    async with Api(place.server.url, {"X-API-Key": made["key"]}) as api:
        code = (await api.post("/api/ui/links", status=201))["url"].partition("#")[2]
    async with pages[1].api() as api:
        session = (await api.post("/api/sessions", {"max_lifetime_s": 60}, status=201))["session_id"]
    async with pages[1].socket(f"/api/sessions/{session}/exec") as socket:
        await socket.raw.send_json({"command": "cat"})
        await socket.expect("started")
        if way == "revoked":
            await admin.call("DELETE", f"/api/admin/keys/{made['id']}", status=204)
        elif way == "rotated":
            await admin.post(f"/api/admin/keys/{made['id']}/rotate")
        else:
            await pages[0].sign_out("/api/ui/sign-out-everywhere")
        async with asyncio.timeout(_ENDS_S):
            while not socket.raw.closed:
                await socket.raw.send_bytes(b"x")
                with contextlib.suppress(TimeoutError):
                    await socket.raw.receive(0.2)
        assert socket.raw.close_code == 4401
    assert await pages[1].account() is None
    assert await pages[1].status(**SAME_ORIGIN) == 401
    async with Page(place.other.url).api() as api:
        await api.refused("POST", "/api/ui/sign-in", {"code": code}, status=401, code="unauthorized")


async def test_a_key_has_fifty_pages_at_most_and_the_oldest_goes(url: str, admin: Api) -> None:
    key = (await new_key(admin))["key"]
    pages = [Page(url) for _ in range(51)]
    for page in pages:
        await page.sign_in(key=key)
    assert await pages[0].status(**SAME_ORIGIN) == 401
    assert await pages[1].status(**SAME_ORIGIN) == 200


# -- pages and their files


async def test_pages_have_a_policy_that_lets_nothing_foreign_run(url: str) -> None:
    nonces = set()
    async with Api(url) as api:
        for path in ("/", "/ui", "/ui/sessions", "/ui/sessions/x?tab=files", "/ui/enter", "/ui/sign-in"):
            async with api.ask("GET", path, headers=HTML) as answer:
                text = await answer.text()
                assert (answer.status, answer.content_type) == (200, "text/html")
            rules = policy_of(answer.headers)
            nonce = re.fullmatch(r"'nonce-([A-Za-z0-9_-]{24})' 'strict-dynamic'", rules["script-src"])
            assert nonce is not None
            nonces.add(nonce[1])
            assert rules == {
                "default-src": "'none'", "script-src": rules["script-src"],
                "style-src": f"'self' 'nonce-{nonce[1]}'", "img-src": "'self' blob: data:", "font-src": "'self'",
                "connect-src": "'self'", "base-uri": "'none'", "form-action": "'none'", "frame-ancestors": "'none'",
                "require-trusted-types-for": "'script'", "trusted-types": "warren",
            }  # fmt: skip
            assert answer.headers["X-Frame-Options"] == "DENY"
            assert answer.headers["Cross-Origin-Opener-Policy"] == "same-origin"
            assert (answer.headers["Cache-Control"], answer.headers["Vary"]) == ("no-store", "Accept")
            assert "__NONCE__" not in text
            assert all(f'nonce="{nonce[1]}"' in tag for tag in re.findall("<script[^>]*>", text))
            assert not re.search(r"<script[^>]*>[^<]|\son[a-z]+\s*=|javascript:|https?://", text)
        assert len(nonces) == 6
        assert (await api.get("/"))["name"] == "warren"
        await api.refused("GET", "/ui/sessions", status=401, code="unauthorized")


async def test_files_of_pages_are_kept_for_good_and_only_they_are_served(url: str) -> None:
    async with Api(url) as api:
        index = (await api.get("/", headers=HTML)).decode()
        names = re.findall(r'"(/ui/static/[^"]+)"', index)
        assert names
        for name in names:
            async with api.ask("GET", name) as answer:
                content = await answer.read()
                assert answer.headers["Cache-Control"] == "public, max-age=31536000, immutable"
                assert answer.headers["Content-Encoding"] == "gzip"
            async with api.ask("GET", name, headers={"Accept-Encoding": "identity"}) as answer:
                assert await answer.read() == content
                assert "Content-Encoding" not in answer.headers
            async with api.ask("GET", name, headers={"If-None-Match": answer.headers["ETag"]}) as answer:
                assert (answer.status, await answer.read()) == (304, b"")
        for wrong in (
            "index.html", "", "x.js", "../edge.py", "..%2fedge.py", "%2e%2e/edge.py", "....//edge.py", "..\\edge.py",
            names[0].rpartition("/")[2] + "%00", names[0].rpartition("/")[2].upper(), "/etc/passwd", "%2fetc%2fpasswd",
        ):  # fmt: skip
            await api.refused("GET", f"/ui/static/{wrong}", status=404, code="not_found")


async def test_nothing_sends_a_browser_elsewhere(page: Page) -> None:
    for path in ("/ui/enter", "/ui/sign-in", "/", "/ui", "/embed/terminal", "/api/ui/session"):
        for query in ("next", "url", "return_to", "redirect", "ticket"):
            for target in ("https://evil.example", "//evil.example", "/\\evil.example"):
                async with page.api({**HTML, **SAME_ORIGIN}) as api, api.ask("GET", path, **{query: target}) as answer:
                    assert answer.status == 200
                    assert "Location" not in answer.headers
                    assert b"evil.example" not in await answer.read()


async def test_files_of_sandboxes_are_never_pages_of_this_origin(page: Page) -> None:
    async with page.api() as api, api.session() as session:
        await session.write("page.html", b"<script>alert(1)</script>")
        saved = await session.post("/artifacts", {"paths": ["page.html"]}, status=201)
        artifact = saved["artifacts"][0]["artifact_id"]
        for path in (
            f"/api/sessions/{session.id}/files/content?path=page.html",
            f"/api/sessions/{session.id}/files/archive?path=.",
            f"/api/artifacts/{artifact}/content",
        ):
            opened = {"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate", **HTML}
            async with page.api(opened) as browser, browser.ask("GET", path) as answer:
                assert answer.status == 200
                rules = policy_of(answer.headers)
                assert (rules["sandbox"], rules["default-src"]) == ("", "'none'")
                assert answer.headers["X-Content-Type-Options"] == "nosniff"
                attached = answer.headers.get("Content-Disposition", "").startswith("attachment")
                assert attached or answer.content_type in ("application/octet-stream", "application/x-tar")
