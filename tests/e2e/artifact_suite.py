"""Artifacts over HTTP: saved on request, by a command and at the end of a session; listed, read in parts, deleted."""

import asyncio
import hashlib
from typing import Any

import pytest
from e2e.api_client import Api, SessionApi, until

MIB = 1024 * 1024


def names(found: dict[str, Any]) -> list[str]:
    return sorted(one["name"] for one in found["artifacts"])


async def of_session(api: Api, session_id: str) -> list[dict[str, Any]]:
    return list((await api.get("/api/artifacts", session_id=session_id))["artifacts"])


@pytest.mark.anyio
class ArtifactSuite:
    async def test_a_file_is_saved_and_outlives_its_session(self, api: Api) -> None:
        data = bytes(range(256)) * 5000
        async with api.session(thread_id="artifacts-1") as session:
            await session.write("out/plot.png", data)
            saved = await session.post("/artifacts", {"paths": ["out/plot.png"]}, status=201)
            assert (saved["left_out"], saved["left_out_count"]) == ([], 0)
            [one] = saved["artifacts"]
        assert (one["name"], one["path"], one["size"]) == ("out/plot.png", "/workspace/out/plot.png", len(data))
        assert (one["sha256"], one["mime_type"]) == (hashlib.sha256(data).hexdigest(), "image/png")
        assert (one["session_id"], one["thread_id"]) == (session.id, "artifacts-1")
        assert await api.get(f"/api/artifacts/{one['artifact_id']}") == one
        assert await api.get(f"/api/artifacts/{one['artifact_id']}/content") == data

    async def test_what_is_below_artifacts_is_saved_before_the_end_is_answered(self, api: Api) -> None:
        async with api.session() as session:
            await session.write("artifacts/report.txt", b"all is well")
            await session.write("artifacts/deep/data.csv", b"a,b\n")
            await session.write("scratch.txt", b"not this")
            ended = await api.call("DELETE", f"/api/sessions/{session.id}")
            assert (ended["artifacts"]["saved"], ended["artifacts"]["bytes"]) == (2, 15)
            assert ended["artifacts"]["left_out"] == []
            found = await of_session(api, session.id)
            assert sorted(one["name"] for one in found) == ["deep/data.csv", "report.txt"]
            assert (await api.get(f"/api/sessions/{session.id}"))["artifacts"]["saved"] == 2

    async def test_a_session_without_artifacts_says_nothing_of_them(self, api: Api) -> None:
        async with api.session() as session:
            assert (await api.call("DELETE", f"/api/sessions/{session.id}"))["artifacts"] is None

    async def test_a_command_saves_what_it_made(self, api: Api, session: SessionApi) -> None:
        await session.write("b.txt", b"b")
        body = {"command": "echo one > a.txt", "save_artifacts": ["*.txt", "nothing.*"]}
        found = await session.post("/exec", body)
        assert (found["exit_code"], names(found["saved"])) == (0, ["a.txt", "b.txt"])
        assert found["saved"]["left_out"] == [{"path": "nothing.*", "why": "no file fits it"}]
        async with session.events("POST", "/exec", {**body, "command": "echo two > a.txt"}) as events:
            [result] = [event.data async for event in events if event.kind == "result"]
        assert names(result["saved"]) == ["a.txt", "b.txt"]
        assert len(await of_session(api, session.id)) == 3  # b.txt is the same as before
        assert "saved" not in await session.post("/exec", {"command": "true"})
        await session.refused(
            "POST", "/exec", {**body, "save_artifacts": ["/etc/*"]}, status=422, code="invalid_request"
        )

    async def test_globs_directories_and_what_is_missing(self, session: SessionApi) -> None:
        for path in ("a.png", "out/b.png", "out/c.txt", "out/deep/d.txt", "odd[1].txt"):
            await session.write(path, path.encode())
        found = await session.post("/artifacts", {"paths": ["*.png"]}, status=201)
        assert names(found) == ["a.png", "out/b.png"]
        found = await session.post("/artifacts", {"paths": ["out", "odd[1].txt", "gone.txt"]}, status=201)
        assert names(found) == ["odd[1].txt", "out/b.png", "out/c.txt", "out/deep/d.txt"]
        assert [one["path"] for one in found["left_out"]] == ["gone.txt"]
        found = await session.post("/artifacts", {"paths": ["/workspace/out/*.txt"]}, status=201)
        assert names(found) == ["out/c.txt"]

    async def test_ranges_and_headers(self, api: Api, session: SessionApi) -> None:
        await session.write('page "1".html', b"<script>alert(1)</script>")
        [one] = (await session.post("/artifacts", {"paths": ['page "1".html']}, status=201))["artifacts"]
        assert one["mime_type"] == "text/html"
        place = f"/api/artifacts/{one['artifact_id']}/content"
        async with api.ask("GET", place, headers={"Range": "bytes=1-6"}) as answer:
            assert (answer.status, await answer.read()) == (206, b"script")
            assert answer.headers["Content-Range"] == "bytes 1-6/25"
            assert answer.headers["ETag"] == f'"{one["sha256"]}"'
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            assert answer.headers["Content-Type"] == "application/octet-stream"
            assert answer.headers["Content-Disposition"].startswith('attachment; filename="page _1_.html"')
            assert "sandbox" in answer.headers["Content-Security-Policy"]
        async with api.ask("GET", place, headers={"Range": "bytes=-9"}) as answer:
            assert (answer.status, await answer.read()) == (206, b"</script>")
        await api.refused("GET", place, headers={"Range": "bytes=25-"}, status=416, code="range_not_satisfiable")

    async def test_pages_and_filters(self, api: Api) -> None:
        async with api.session(thread_id="artifacts-2") as session:
            for number in range(5):
                await session.write(f"{number}.txt", b"x")
                await session.post("/artifacts", {"paths": [f"{number}.txt"]}, status=201)
                await asyncio.sleep(0.002)
            query = {"session_id": session.id, "limit": 2}
            page, seen = await api.get("/api/artifacts", **query), []
            while True:
                seen += [one["name"] for one in page["artifacts"]]
                if page["next"] is None:
                    break
                page = await api.get("/api/artifacts", **query, after=page["next"])
            assert seen == ["4.txt", "3.txt", "2.txt", "1.txt", "0.txt"]
            found = await api.get("/api/artifacts", thread_id="artifacts-2", name="[12]*")
            assert [one["name"] for one in found["artifacts"]] == ["2.txt", "1.txt"]
            newest = await api.get("/api/artifacts", limit=1)
            assert [one["name"] for one in newest["artifacts"]] == ["4.txt"]

    async def test_deleting_one(self, api: Api, session: SessionApi) -> None:
        await session.write("f", b"x")
        [one] = (await session.post("/artifacts", {"paths": ["f"]}, status=201))["artifacts"]
        place = f"/api/artifacts/{one['artifact_id']}"
        await api.call("DELETE", place, status=204)
        for method, at in (("GET", place), ("GET", f"{place}/content"), ("DELETE", place)):
            await api.refused(method, at, status=404, code="not_found")
        [again] = (await session.post("/artifacts", {"paths": ["f"]}, status=201))["artifacts"]
        assert again["artifact_id"] != one["artifact_id"]

    async def test_the_same_content_is_saved_once(self, api: Api) -> None:
        async with api.session() as session:
            await session.write("artifacts/f", b"first")
            saved = [await session.post("/artifacts", {"paths": ["artifacts"]}, status=201) for _ in range(2)]
            assert saved[0] == saved[1]
            await session.write("artifacts/f", b"second")
            await session.post("/artifacts", {"paths": ["artifacts/f"]}, status=201)
            await api.call("DELETE", f"/api/sessions/{session.id}")
            assert [one["size"] for one in await of_session(api, session.id)] == [6, 5]


@pytest.mark.anyio
class LinuxArtifactSuite:
    async def test_code_saves_its_files_and_its_results(self, api: Api, session: SessionApi) -> None:
        shown = "'_repr_png_': lambda self: b'picture', '_repr_svg_': lambda self: '<svg/>'"
        code = f"open('table.csv', 'w').write('a,b')\ntype('Shown', (), {{{shown}}})()"
        body = {"code": code, "save_artifacts": ["*.csv"], "save_results": True}
        found = await session.post("/code", body)
        png, svg, table = found["saved"]["artifacts"]
        assert [one["name"] for one in (png, svg, table)] == [
            f"{found['id']}-1.png",
            f"{found['id']}-1.svg",
            "table.csv",
        ]
        assert (png["mime_type"], svg["mime_type"]) == ("image/png", "image/svg+xml")
        assert await api.get(f"/api/artifacts/{png['artifact_id']}/content") == b"picture"
        async with session.events("POST", "/code", body) as events:
            [end] = [event.data async for event in events if event.kind == "end"]
        assert len(end["saved"]["artifacts"]) == 3
        assert "saved" not in await session.post("/code", {"code": code})
        await session.refused(
            "POST", "/code", {**body, "save_artifacts": ["/etc/*"]}, status=422, code="invalid_request"
        )

    async def test_hostile_content_is_left_out_and_the_session_ends(self, api: Api) -> None:
        program = r"""
mkdir -p /workspace/artifacts/deep/er && cd /workspace/artifacts
printf good > good.txt
printf odd > $'odd-\xff\n\x1b[2J'
ln -s /etc/passwd link; ln -s / deep/root; ln -s . loop
mkfifo fifo
truncate -s 1T sparse 2> errors || truncate -s 500M sparse
rm -f errors
printf x > secret; chmod 0 secret
printf last > last.txt
"""
        async with api.session() as session:
            assert (await session.post("/exec", {"command": program}))["exit_code"] == 0
            ended = (await api.call("DELETE", f"/api/sessions/{session.id}"))["artifacts"]
            found = {one["name"]: one["size"] for one in await of_session(api, session.id)}
            odd = b"odd-\xff\n\x1b[2J".decode(errors="surrogateescape")
            assert found == {"good.txt": 4, "last.txt": 4, odd: 3}
            left = {one["path"].removeprefix("/workspace/artifacts/"): one["why"] for one in ended["left_out"]}
            assert set(left) == {"link", "deep/root", "loop", "fifo", "sparse", "secret"}
            assert left["link"] == "it is a link"
            assert left["fifo"] == "it is no regular file"
            assert "bytes" in left["sparse"]

    async def test_very_many_files_are_bounded(self, api: Api) -> None:
        program = "mkdir -p artifacts; cd artifacts; seq 1 1500 | xargs -n 500 touch"
        async with api.session() as session:
            assert (await session.post("/exec", {"command": program}))["exit_code"] == 0
            ended = (await api.call("DELETE", f"/api/sessions/{session.id}"))["artifacts"]
            assert (ended["saved"], ended["left_out_count"], len(ended["left_out"])) == (1000, 500, 20)

    async def test_a_file_that_grows_all_the_time(self, api: Api) -> None:
        async with api.session() as session:
            command = "mkdir -p artifacts; while :; do head -c 1000000 /dev/zero >> artifacts/log; done"
            await session.start(command)

            async def has_grown() -> bool:
                found = await session.post("/exec", {"command": "stat -c %s artifacts/log || echo 0"})
                return int(found["stdout"]) > 1_000_000

            await until(has_grown)
            saved = await session.post("/artifacts", {"paths": ["artifacts/log"]}, status=201)
            assert len(saved["artifacts"]) == 1
            ended = (await api.call("DELETE", f"/api/sessions/{session.id}"))["artifacts"]
            assert ended["saved"] + ended["left_out_count"] == 1

    async def test_artifacts_that_is_a_link_is_not_followed(self, api: Api) -> None:
        async with api.session() as session:
            await session.post("/exec", {"command": "ln -s /etc /workspace/artifacts"})
            assert (await api.call("DELETE", f"/api/sessions/{session.id}"))["artifacts"] is None
