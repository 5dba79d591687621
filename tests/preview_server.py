"""A server for tests of previews, which runs inside a sandbox: `python3 preview_server.py PORT [HOST]`.

It needs only Python. GET /echo returns the request, POST /sum the size and hash of its body, /bytes?N returns N bytes,
/events a stream of events, /slow answers after a while, /raw?HEX answers with exactly these bytes, /ws echoes.
"""

import asyncio
import base64
import hashlib
import json
import struct
import sys

PIECE = bytes(range(256)) * 4096  # 1 MiB
GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


async def serve(reader, writer):
    try:
        while await one(reader, writer):
            pass
    except (ConnectionError, asyncio.IncompleteReadError):
        pass
    finally:
        writer.close()


async def one(reader, writer):
    head = await reader.readuntil(b"\r\n\r\n")
    first, *lines = head[:-4].decode("latin-1").split("\r\n")
    method, target, _ = first.split(" ")
    headers = [line.split(": ", 1) for line in lines]
    values = {name.lower(): value for name, value in headers}
    path, _, query = target.partition("?")
    if values.get("upgrade", "").lower() == "websocket":
        await websocket(reader, writer, values, path)
        return False
    size, digest = 0, hashlib.sha256()
    async for piece in body_of(reader, values):
        size += len(piece)
        digest.update(piece)
    if path == "/sum":
        answer(writer, json.dumps([size, digest.hexdigest()]).encode())
    elif path == "/bytes":
        await many(writer, int(query), method)
    elif path == "/events":
        await events(writer, int(query))
        return False
    elif path == "/slow":
        await asyncio.sleep(float(query))
        answer(writer, b"late")
    elif path == "/raw":
        writer.write(bytes.fromhex(query))
        return False
    elif path == "/silent":
        return False
    else:
        answer(writer, json.dumps({"method": method, "target": target, "headers": headers, "size": size}).encode())
    await writer.drain()
    return values.get("connection") != "close"


async def body_of(reader, values):
    if values.get("transfer-encoding") == "chunked":
        while size := int(await reader.readline(), 16):
            yield await reader.readexactly(size)
            await reader.readexactly(2)
        await reader.readline()
        return
    left = int(values.get("content-length", 0))
    while left:
        piece = await reader.read(min(left, 1 << 20))
        if not piece:
            raise ConnectionError
        left -= len(piece)
        yield piece


def answer(writer, body, status="200 OK", more=""):
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n{more}\r\n"
    writer.write(head.encode() + body)


async def many(writer, count, method):
    writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {count}\r\n\r\n".encode())
    while count > 0 and method != "HEAD":
        writer.write(PIECE[:count])
        count -= len(PIECE)
        await writer.drain()


async def events(writer, count):
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
    for number in range(count):
        writer.write(b"data: %d\n\n" % number)
        await writer.drain()
        await asyncio.sleep(0.05)


async def websocket(reader, writer, values, path):
    if path != "/ws":
        answer(writer, b"no", "404 Not Found")
        return
    accept = base64.b64encode(hashlib.sha1(values["sec-websocket-key"].encode() + GUID).digest()).decode()
    protocol = values.get("sec-websocket-protocol", "").split(",")[0]
    more = f"Sec-WebSocket-Protocol: {protocol}\r\n" if protocol else ""
    writer.write(f"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                 f"Sec-WebSocket-Accept: {accept}\r\n{more}\r\n".encode())  # fmt: skip
    while True:
        first, second = await reader.readexactly(2)
        length = second & 127
        if length == 126:
            [length] = struct.unpack(">H", await reader.readexactly(2))
        elif length == 127:
            [length] = struct.unpack(">Q", await reader.readexactly(8))
        mask = await reader.readexactly(4)
        data = await reader.readexactly(length)
        repeated = (mask * (length // 4 + 1))[:length]
        data = (int.from_bytes(data, "big") ^ int.from_bytes(repeated, "big")).to_bytes(length, "big")
        size = bytes([length]) if length < 126 else b"\x7f" + struct.pack(">Q", length)
        if 126 <= length <= 65535:
            size = b"\x7e" + struct.pack(">H", length)
        writer.write(bytes([first]) + size + data)
        await writer.drain()
        if first & 15 == 8:
            return


async def main():
    host = sys.argv[2] if len(sys.argv) > 2 else "127.0.0.1"
    async with await asyncio.start_server(serve, host, int(sys.argv[1]), limit=1 << 20) as server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
