"""Volumes as E2B's clients ask for them: status codes, shapes, tokens, and what becomes of wrong requests."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from e2e.alone_or_cluster import KINDS, running
from e2e.api_client import Api, of
from e2e.conftest import NewState
from e2e.test_e2b_control import ADMIN, create, refused
from server_process import ServerProcess

pytestmark = pytest.mark.anyio

ENTRY = {"name", "type", "path", "size", "mode", "uid", "gid", "atime", "mtime", "ctime"}
NOBODYS = f"vol_{'0' * 32}"


@pytest.fixture(scope="module", params=KINDS)
def server(request: pytest.FixtureRequest, new_state: NewState) -> Iterator[ServerProcess]:
    options = {"WARREN_API_KEY": ADMIN, "WARREN_MIN_FREE_MEMORY_MB": "1", "WARREN_E2B_TEMPLATES": "base=base"}
    with running(request.param, new_state, "--pool-size", "0", **options) as place:
        yield place.server


@pytest.fixture
async def admin(server: ServerProcess) -> AsyncIterator[Api]:
    async with Api(server.url, {"X-API-Key": ADMIN}) as api:
        yield api


def bearer(made: dict[str, Any]) -> dict[str, str]:
    return {"Authorization": f"Bearer {made['token']}"}


def content(made: dict[str, Any]) -> str:
    return f"/volumecontent/{made['volumeID']}"


async def test_a_volume_from_its_making_to_its_end(admin: Api) -> None:
    async with of(admin, "life") as api, Api(admin.url) as client:
        made = await api.post("/volumes", {"name": "my-volume"}, status=201)
        assert set(made) == {"volumeID", "name", "token", "domain"}
        assert await api.get("/volumes") == [{"volumeID": made["volumeID"], "name": "my-volume"}]
        shown = await api.get(f"/volumes/{made['volumeID']}")
        assert {**shown, "token": ""} == {**made, "token": ""}
        await refused(api, "POST", "/volumes", {"name": "my-volume"}, status=409)
        for name in ("", "a/b", None, "vol_1"):
            await refused(api, "POST", "/volumes", {"name": name}, status=400)

        place, headers = content(made), bearer(made)
        path = f"{place}/file?path=/path/to/file"
        written = await client.call("PUT", path, data=b"file content", headers=headers, status=201)
        assert set(written) == ENTRY
        assert (written["name"], written["type"], written["path"]) == ("file", "file", "/path/to/file")
        assert await client.call("GET", path, headers=headers) == b"file content"
        entry = await client.call("GET", f"{place}/path?path=path/to/file", headers=headers)
        assert entry == written
        made_dir = await client.call("POST", f"{place}/dir?path=/a/b&force=true", headers=headers, status=201)
        assert (made_dir["type"], made_dir["path"]) == ("directory", "/a/b")
        listed = await client.call("GET", f"{place}/dir?path=/&depth=2", headers=headers)
        assert [each["path"] for each in listed] == ["/a", "/a/b", "/path", "/path/to"]
        await refused(client, "POST", f"{place}/dir?path=/a/b", headers=headers, status=409)
        await refused(client, "POST", f"{place}/dir?path=/x/y", headers=headers, status=404)
        for wrong in ("/dir?path=/none", "/file?path=/none", "/path?path=/none"):
            await refused(client, "GET", place + wrong, headers=headers, status=404)
        for wrong in (
            "/dir?path=/path/to/file",
            "/file?path=/a",
            "/file",
            "/dir?path=/&depth=0",
            "/dir?path=/&depth=x",
        ):
            await refused(client, "GET", place + wrong, headers=headers, status=400)
        await refused(client, "PUT", f"{place}/file?path=/x&mode=65536", data=b"", headers=headers, status=400)
        await refused(client, "PATCH", f"{place}/path?path=/a", {"uid": -1}, headers=headers, status=400)
        assert await client.call("DELETE", f"{place}/path?path=/a", headers=headers, status=204) == b""
        await refused(client, "DELETE", f"{place}/path?path=/a", headers=headers, status=404)
        await refused(client, "DELETE", f"{place}/path?path=/..", headers=headers, status=400)

        sandbox = await create(api, volumeMounts=[{"name": "my-volume", "path": "/workspace/data"}])
        shown = await api.get(f"/sandboxes/{sandbox['sandboxID']}")
        assert shown["volumeMounts"] == [{"name": "my-volume", "path": "/workspace/data"}]
        await refused(api, "DELETE", f"/volumes/{made['volumeID']}", status=409)
        assert await client.call("GET", path, headers=headers) == b"file content"
        await api.call("DELETE", f"/sandboxes/{sandbox['sandboxID']}", status=204)
        assert await api.get("/v2/sandboxes") == []
        assert await api.call("DELETE", f"/volumes/{made['volumeID']}", status=204) == b""
        await refused(api, "DELETE", f"/volumes/{made['volumeID']}", status=404)
        await refused(client, "GET", path, headers=headers, status=404)


async def test_a_token_opens_one_volume_of_one_tenant(admin: Api) -> None:
    async with of(admin, "one") as one, of(admin, "two") as two, Api(admin.url) as client:
        mine = await one.post("/volumes", {"name": "v"}, status=201)
        other = await one.post("/volumes", {"name": "w"}, status=201)
        theirs = await two.post("/volumes", {"name": "v"}, status=201)
        text = f"{content(mine)}/dir?path=/"
        for wrong in (
            *({}, {"X-API-Key": ADMIN}, bearer(other), bearer(theirs), {"Authorization": "Bearer "}),
            *({"Authorization": f"Bearer {ADMIN}"}, {"Authorization": f"Basic {mine['token']}"}),
            {"Authorization": f"Bearer {mine['token'][:-1]}{'0' if mine['token'][-1] != '0' else '1'}"},
        ):
            await refused(client, "GET", text, headers=wrong, status=401)
        for method, place in (("GET", "/volumes"), ("DELETE", f"/volumes/{mine['volumeID']}"), ("GET", "/api/volumes")):
            async with client.ask(method, place, headers=bearer(mine)) as answer:
                assert answer.status == 401, "the token is none of the API"
        for method in ("GET", "DELETE"):
            await refused(two, method, f"/volumes/{mine['volumeID']}", status=404)
            await refused(two, method, f"/volumes/{NOBODYS}", status=404)
        await refused(two, "POST", "/v2/sandboxes", {"templateID": "base", "volumeMounts": [
            {"name": "w", "path": "/workspace/x"}]}, status=404)  # fmt: skip
        for mounts in (
            [{"name": "v", "path": "/proc"}],
            [{"name": "v"}],
            ["v"],
            {"/x": "v"},
            [{"name": 1, "path": "/x"}],
        ):
            await refused(one, "POST", "/v2/sandboxes", {"templateID": "base", "volumeMounts": mounts}, status=400)


async def test_a_key_that_only_reads_gets_a_token_that_only_reads(admin: Api) -> None:
    async with of(admin, "reader") as api, Api(admin.url) as client:
        made = await api.post("/volumes", {"name": "v"}, status=201)
        path = f"{content(made)}/file?path=/a"
        await client.call("PUT", path, data=b"x", headers=bearer(made), status=201)
        key = await admin.post("/api/admin/keys", {"name": "r", "tenant": "reader", "scopes": ["read"]}, status=201)
        async with Api(admin.url, {"X-API-Key": key["key"]}) as reader:
            seen = await reader.get(f"/volumes/{made['volumeID']}")
            await refused(reader, "POST", "/volumes", {"name": "w"}, status=403)
            await refused(reader, "DELETE", f"/volumes/{made['volumeID']}", status=403)
        assert await client.call("GET", path, headers=bearer(seen)) == b"x"
        for method, below in (("PUT", "file"), ("POST", "dir"), ("DELETE", "path"), ("PATCH", "path")):
            place = f"{content(made)}/{below}?path=/b"
            await refused(client, method, place, data=b"", headers=bearer(seen), status=403)
