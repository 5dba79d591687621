"""A far side for the provider e2b: a small server with E2B's HTTP API whose sandboxes are throw-away namespaces.

It has only what the provider uses. A test can make it misbehave: `fail` answers the next requests with an error, `cut`
breaks all streams, requests in `lose_answers` are done but not answered, and while `stalled` is not set all requests
wait. Root inside has no more capabilities than in a sandbox of Warren.
"""

import asyncio
import base64
import itertools
import json
import os
import struct
import subprocess
import sys
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote

from aiohttp import web

HERE = Path(__file__).parent
LAUNCHER = HERE / "contract" / "namespace_launcher.py"
IDLE = HERE / "data" / "idle.sh"
KEY = "e2b_" + "0" * 40
CAPABILITIES = "-all,+chown,+dac_override,+fowner,+fsetid,+kill,+setgid,+setuid,+net_bind_service"
_FRAME = struct.Struct(">BI")
_ids = itertools.count(1)


@dataclass
class FarProcess:
    pid: int
    process: asyncio.subprocess.Process
    followers: set["asyncio.Queue[dict[str, Any] | None]"] = field(default_factory=set)

    def tell(self, event: dict[str, Any] | None) -> None:
        for follower in self.followers:
            follower.put_nowait(event)

    async def pump(self, name: str, stream: asyncio.StreamReader) -> None:
        while data := await stream.read(32 * 1024):
            self.tell({"data": {name: base64.b64encode(data).decode()}})

    async def run(self) -> None:
        assert self.process.stdout
        assert self.process.stderr
        await asyncio.gather(self.pump("stdout", self.process.stdout), self.pump("stderr", self.process.stderr))
        code = await self.process.wait()
        self.tell({"end": {"exitCode": code, "exited": True, "status": f"exit status {code}"}})


@dataclass
class FarBox:
    id: str
    template: str
    metadata: dict[str, str]
    launcher: "subprocess.Popen[bytes]"
    timeouts: list[int]
    pid: int = 0
    processes: dict[int, FarProcess] = field(default_factory=dict)
    tasks: set["asyncio.Task[None]"] = field(default_factory=set)

    async def wait_until_up(self) -> None:
        pid = self.launcher.pid
        for _ in range(2):
            while not (children := _children(pid)):
                await asyncio.sleep(0.01)
            pid = children[0]
        while not os.readlink(f"/proc/{pid}/exe").endswith("sleep"):
            await asyncio.sleep(0.01)
        self.pid = pid

    async def stop(self) -> None:
        self.launcher.terminate()
        await asyncio.to_thread(self.launcher.wait)
        while os.path.exists(f"/proc/{self.pid}/root/proc"):
            await asyncio.sleep(0.005)
        for task in self.tasks:
            task.cancel()
        for process in self.processes.values():
            process.tell(None)  # without an end event, because the sandbox is gone
            await process.process.wait()
            process.process._transport.close()  # type: ignore[attr-defined]


def _children(pid: int) -> list[int]:
    with suppress(OSError):
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


class FarSide:
    def __init__(self) -> None:
        self.boxes: dict[str, FarBox] = {}
        self.templates = {"base": "base-id"}
        self.size = {"cpuCount": 2, "memoryMB": 1024, "diskSizeMB": 4096}
        self.metrics: list[dict[str, Any]] = []
        self.asked: list[str] = []
        self.failures: deque[tuple[str, web.Response]] = deque()
        self.lose_answers: list[str] = []
        self.refused_kills = 0
        self.stalled = asyncio.Event()
        self.stalled.set()
        self._streams: list[web.Request] = []
        self._runner: web.AppRunner | None = None
        self.url = ""

    async def start(self, port: int = 0) -> "FarSide":
        app = web.Application(middlewares=[self._guard], client_max_size=64 * 1024 * 1024)
        app.add_routes(
            [
                web.post("/sandboxes", self._create),
                web.get("/v2/sandboxes", self._list),
                web.get("/sandboxes/{id}", self._show),
                web.get("/sandboxes/{id}/metrics", self._metrics),
                web.delete("/sandboxes/{id}", self._kill),
                web.post("/sandboxes/{id}/timeout", self._timeout),
                web.get("/templates/aliases/{name}", self._template),
                web.post("/files", self._upload),
                web.post("/process.Process/Start", self._start),
                web.post("/process.Process/Connect", self._connect),
                web.post("/process.Process/SendInput", self._send_input),
            ]
        )
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", port)
        await site.start()
        self.port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
        self.url = f"http://127.0.0.1:{self.port}"
        return self

    async def go_away(self) -> None:
        """Stops the server; its sandboxes go on. `start(port)` brings it back."""
        self.cut()
        assert self._runner is not None
        await self._runner.cleanup()

    async def close(self) -> None:
        await self.go_away()
        for box in self.boxes.values():
            await box.stop()

    # -- what goes wrong

    def fail(
        self, path: str, status: int, times: int = 1, headers: Mapping[str, str] | None = None, **details: object
    ) -> None:
        """Answers the next `times` requests whose path begins with `path` with an error, without doing them."""
        body = {"code": status, "message": f"failure {status} of the far side", **details}
        for _ in range(times):
            self.failures.append((path, web.json_response(body, status=status, headers=headers)))

    def cut(self) -> None:
        for request in list(self._streams):
            if request.transport is not None:
                request.transport.abort()

    @web.middleware
    async def _guard(self, request: web.Request, handler: Any) -> web.StreamResponse:
        self.asked.append(f"{request.method} {request.path}")
        for each in list(self.failures):
            if request.path.startswith(each[0]):
                self.failures.remove(each)
                return each[1]
        await self.stalled.wait()
        if "E2b-Sandbox-Id" in request.headers:
            box = self.boxes.get(request.headers["E2b-Sandbox-Id"])
            if box is None:
                return _problem(502, "The sandbox was not found")
            if request.headers.get("X-Access-Token") != f"token-{box.id}":
                return _problem(401, "invalid access token")
        elif request.headers.get("X-API-KEY") != KEY:
            return _problem(401, "Invalid API key")
        response: web.StreamResponse = await handler(request)
        if f"{request.method} {request.path}" in self.lose_answers and request.transport is not None:
            self.lose_answers.remove(f"{request.method} {request.path}")
            request.transport.abort()
        return response

    # -- the control plane

    async def _create(self, request: web.Request) -> web.Response:
        body = await request.json()
        if body["templateID"] not in self.templates:
            return _problem(404, f"template '{body['templateID']}' not found")
        assert body["allow_internet_access"] is False
        name = f"far{next(_ids)}"
        command = [sys.executable, "-I", "-S", str(LAUNCHER), str(IDLE), "0", str(self.size["diskSizeMB"])]
        launcher = await asyncio.to_thread(
            subprocess.Popen, command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        box = self.boxes[name] = FarBox(name, body["templateID"], body["metadata"], launcher, [body["timeout"]])
        await asyncio.shield(box.wait_until_up())
        answer = {"templateID": box.template, "sandboxID": name, "clientID": "far", "envdVersion": "0.6.13"}
        return web.json_response({**answer, "envdAccessToken": f"token-{name}"}, status=201)

    async def _list(self, request: web.Request) -> web.Response:
        wanted = {unquote(key): unquote(value) for key, value in parse_qsl(request.query.get("metadata", ""))}
        found = [box for box in self.boxes.values() if wanted.items() <= box.metadata.items()]
        start = int(request.query.get("nextToken", "0"))
        more = {"x-next-token": str(start + 2)} if len(found) > start + 2 else {}
        page = [{**self._facts(box), "metadata": box.metadata} for box in found[start : start + 2]]
        return web.json_response(page, headers=more)

    def _facts(self, box: FarBox) -> dict[str, Any]:
        return {"sandboxID": box.id, "templateID": box.template, "state": "running", **self.size}

    async def _show(self, request: web.Request) -> web.Response:
        box = self.boxes.get(request.match_info["id"])
        return web.json_response(self._facts(box)) if box else _problem(404, "sandbox not found")

    async def _metrics(self, request: web.Request) -> web.Response:
        known = request.match_info["id"] in self.boxes
        return web.json_response(self.metrics) if known else _problem(404, "sandbox not found")

    async def _kill(self, request: web.Request) -> web.Response:
        if self.refused_kills:
            self.refused_kills -= 1
            return _problem(500, "not now")
        box = self.boxes.pop(request.match_info["id"], None)
        if box is None:
            return _problem(404, "sandbox not found")
        await asyncio.shield(box.stop())
        return web.Response(status=204)

    async def _timeout(self, request: web.Request) -> web.Response:
        box = self.boxes.get(request.match_info["id"])
        if box is None:
            return _problem(404, "sandbox not found")
        box.timeouts.append((await request.json())["timeout"])
        return web.Response(status=204)

    async def _template(self, request: web.Request) -> web.Response:
        found = self.templates.get(request.match_info["name"])
        return web.json_response({"templateID": found, "public": True}) if found else _problem(404, "no such alias")

    # -- envd

    def _box(self, request: web.Request) -> FarBox:
        return self.boxes[request.headers["E2b-Sandbox-Id"]]

    async def _upload(self, request: web.Request) -> web.Response:
        assert request.query["username"] == "root"
        reader = await request.multipart()
        part: Any = await reader.next()
        content = bytes(await part.read())
        path = request.query["path"]
        process = await self._spawn(self._box(request), ["/bin/sh", "-c", f"cat > {path}"])
        await process.communicate(content)
        return web.json_response([{"path": path, "name": Path(path).name, "type": "file"}])

    async def _spawn(self, box: FarBox, argv: list[str]) -> asyncio.subprocess.Process:
        inside = ["nsenter", "-t", str(box.pid), "-a", "-r", "-S", "0", "-G", "0"]
        return await asyncio.create_subprocess_exec(
            *inside,
            *("setpriv", f"--bounding-set={CAPABILITIES}", "--inh-caps=-all", *argv),
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )

    async def _start(self, request: web.Request) -> web.StreamResponse:
        asked = _message(await request.read())
        box, wanted = self._box(request), asked["process"]
        process = FarProcess(next(_ids), await self._spawn(box, [wanted["cmd"], *wanted["args"]]))
        if not asked.get("stdin", True):
            assert process.process.stdin
            process.process.stdin.close()
        box.processes[process.pid] = process
        follower = self._follow(process)
        box.tasks.add(asyncio.ensure_future(process.run()))
        return await self._stream(request, process, follower)

    async def _connect(self, request: web.Request) -> web.StreamResponse:
        process = self._box(request).processes.get(_message(await request.read())["process"]["pid"])
        if process is None or process.process.returncode is not None:
            return await _ended(request, {"error": {"code": "not_found", "message": "no such process"}})
        return await self._stream(request, process, self._follow(process))

    def _follow(self, process: FarProcess) -> "asyncio.Queue[dict[str, Any] | None]":
        follower: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        process.followers.add(follower)
        return follower

    async def _stream(
        self, request: web.Request, process: FarProcess, follower: "asyncio.Queue[dict[str, Any] | None]"
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/connect+json"})
        self._streams.append(request)
        try:
            await response.prepare(request)
            await response.write(_packed({"event": {"start": {"pid": process.pid}}}))
            while (event := await follower.get()) is not None:
                await response.write(_packed({"event": event}))
                if "end" in event:
                    await response.write(_packed({}, flags=2))
                    return response
            if request.transport is not None:
                request.transport.abort()
        except ConnectionError:
            pass
        finally:
            process.followers.discard(follower)
            self._streams.remove(request)
        return response

    async def _send_input(self, request: web.Request) -> web.Response:
        asked = await request.json()
        process = self._box(request).processes.get(asked["process"]["pid"])
        if process is None or process.process.stdin is None or process.process.returncode is not None:
            return web.json_response({"code": "not_found", "message": "no such process"}, status=404)
        process.process.stdin.write(base64.b64decode(asked["input"]["stdin"]))
        with suppress(ConnectionError):
            await process.process.stdin.drain()
        return web.json_response({})


def _problem(status: int, message: str) -> web.Response:
    return web.json_response({"code": status, "message": message}, status=status)


def _message(raw: bytes) -> dict[str, Any]:
    _, size = _FRAME.unpack(raw[:5])
    found: dict[str, Any] = json.loads(raw[5 : 5 + size])
    return found


def _packed(message: dict[str, Any], flags: int = 0) -> bytes:
    text = json.dumps(message).encode()
    return _FRAME.pack(flags, len(text)) + text


async def _ended(request: web.Request, last: dict[str, Any]) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "application/connect+json"})
    await response.prepare(request)
    await response.write(_packed(last, flags=2))
    return response
