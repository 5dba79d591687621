"""Connect's protocol as E2B's clients speak it, frame by frame."""

import asyncio
import base64
import contextlib
import json
import struct
from collections.abc import AsyncIterator, Mapping
from types import TracebackType
from typing import Any, Final, Self

import httpx2

_HEAD: Final = struct.Struct(">BI")
_STREAM: Final = {"Content-Type": "application/connect+json"}
END: Final = 2
Frame = tuple[int, dict[str, Any]]


def frame(message: Any, flags: int = 0) -> bytes:
    body = message if isinstance(message, bytes) else json.dumps(message).encode()
    return _HEAD.pack(flags, len(body)) + body


def encode(data: bytes) -> str:
    return base64.b64encode(data).decode()


def bash(line: str, **config: Any) -> dict[str, Any]:
    """What an SDK sends to run a line."""
    return {"process": {"cmd": "/bin/bash", "args": ["-l", "-c", line], **config}, "stdin": False}


class Stream:
    """The frames of an answer. `start`, `data` and `end` read on until they have come."""

    def __init__(self, answer: httpx2.Response) -> None:
        self.status, self.headers = answer.status_code, answer.headers
        self.raw = answer
        self._frames = self._read()
        self.output = {"stdout": b"", "stderr": b"", "pty": b""}
        self.longest = 0
        self.keepalives = 0

    async def _read(self) -> AsyncIterator[Frame]:
        data = b""
        async for piece in self.raw.aiter_raw():
            data += piece
            while len(data) >= _HEAD.size:
                flags, length = _HEAD.unpack_from(data)
                if len(data) < _HEAD.size + length:
                    break
                body, data = data[_HEAD.size : _HEAD.size + length], data[_HEAD.size + length :]
                yield flags, json.loads(body)
        assert not data, data

    async def next(self) -> Frame:
        return await asyncio.wait_for(anext(self._frames), 30)

    async def start(self) -> int:
        flags, message = await self.next()
        assert flags == 0, message
        return int(message["event"]["start"]["pid"])

    async def said(self, text: bytes, stream: str = "stdout") -> None:
        while text not in self.output[stream]:
            await self._take()

    async def end(self) -> dict[str, Any]:
        """The values of the end event, which must be the last frame but one."""
        while (end := await self._take()) is None:
            pass
        assert await self.next() == (END, {})
        assert await anext(self._frames, None) is None
        return end

    async def error(self) -> tuple[str, str]:
        """What the frame says that ends a stream with an error."""
        while True:
            flags, message = await self.next()
            if flags == END:
                assert await anext(self._frames, None) is None
                return message["error"]["code"], message["error"]["message"]
            self._note(message)

    async def _take(self) -> dict[str, Any] | None:
        flags, message = await self.next()
        assert flags == 0, message
        return self._note(message)

    def _note(self, message: dict[str, Any]) -> dict[str, Any] | None:
        event = message["event"]
        for stream, text in event.get("data", {}).items():
            data = base64.b64decode(text, validate=True)
            self.output[stream] += data
            self.longest = max(self.longest, len(data))
        self.keepalives += "keepalive" in event
        end: dict[str, Any] | None = event.get("end")
        return end


class Envd:
    """The service for commands of one sandbox."""

    def __init__(self, url: str, session_id: str, token: str = "") -> None:
        headers = {"E2b-Sandbox-Id": session_id.removeprefix("ses_"), "E2b-Sandbox-Port": "49983"}
        limits = httpx2.Limits(max_connections=None)
        token_header = {"X-Access-Token": token} if token else {}
        self.http = httpx2.AsyncClient(base_url=url, headers={**headers, **token_header}, timeout=60, limits=limits)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.http.aclose()

    async def call(self, name: str, message: Any, **headers: str) -> tuple[int, dict[str, Any]]:
        answer = await self.http.post(f"/process.Process/{name}", json=message, headers=_named(headers))
        return answer.status_code, answer.json()

    async def done(self, name: str, message: Any) -> None:
        assert await self.call(name, message) == (200, {})

    async def processes(self) -> list[dict[str, Any]]:
        status, found = await self.call("List", {})
        assert status == 200, found
        return list(found["processes"])

    @contextlib.asynccontextmanager
    async def stream(self, name: str, *frames: bytes, **headers: str) -> AsyncIterator[Stream]:
        """The frames are sent one by one, in chunks."""

        async def body() -> AsyncIterator[bytes]:
            for one in frames:
                yield one

        place = f"/process.Process/{name}"
        async with self.http.stream("POST", place, content=body(), headers={**_STREAM, **_named(headers)}) as answer:
            yield Stream(answer)

    @contextlib.asynccontextmanager
    async def started(self, line: str | dict[str, Any], headers: Mapping[str, str] = {}, **rest: Any) -> Any:
        """A line, or the whole message; `rest` is added to the message."""
        message = {**(bash(line) if isinstance(line, str) else line), **rest}
        async with self.stream("Start", frame(message), **headers) as stream:
            assert (stream.status, stream.headers["content-type"]) == (200, "application/connect+json")
            yield stream

    async def run(self, line: str | dict[str, Any], **rest: Any) -> tuple[bytes, bytes, dict[str, Any]]:
        async with self.started(line, **rest) as stream:
            await stream.start()
            end = await stream.end()
        return stream.output["stdout"], stream.output["stderr"], end

    async def refused(self, line: str | dict[str, Any], **rest: Any) -> tuple[str, str]:
        async with self.started(line, **rest) as stream:
            error: tuple[str, str] = await stream.error()
        return error


def _named(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}
