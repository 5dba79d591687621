"""What is wrong in a way only one route knows: its values, its forms, its archives, its headers.

Each case: the request, the codes that are right for it.
"""

import io
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from e2e.bad_input_routes import FORM, FORM_TYPE, GOOD, UNKNOWN_ID, Request

NUL, LONG_NAME, LONG_PATH = "a\0b", "n" * 256, "d/" * 2100 + "f"
Case = tuple[Request, str]

_S = "/api/sessions/{session_id}"
_P = f"{_S}/processes/{{process_id}}"
_NEW_BODIES: list[tuple[dict[str, Any], str]] = [
    ({"thread_id": "t" * 256}, "invalid_request"),
    ({"thread_id": NUL}, "invalid_request"),
    ({"thread_id": "two\nlines"}, "invalid_request"),
    ({"environment": "nothing"}, "unknown_environment"),
    ({"environment": "../../etc/passwd"}, "unknown_environment"),
    ({"environment": NUL}, "unknown_environment"),
    ({"environment": "e" * 100_000}, "unknown_environment"),
    ({"image": "../x"}, "invalid_request"),
    ({"image": "/etc/passwd"}, "invalid_request"),
    ({"image": NUL}, "invalid_request"),
    ({"image": "i" * 256}, "invalid_request"),
    ({"provider": "nothing"}, "invalid_request"),
    ({"require": ["nothing"]}, "invalid_request"),
    ({"limits": {"memory_mb": 0}}, "invalid_request"),
    ({"limits": {"memory_mb": -1}}, "invalid_request"),
    ({"limits": {"memory_mb": 10**30}}, "invalid_request"),
    ({"limits": {"cpus": 0.0}}, "invalid_request"),
    ({"limits": {"pids": 1}}, "invalid_request"),
    ({"limits": {"disk_mb": 1}}, "invalid_request"),
    ({"limits": {"open_files": 1}}, "invalid_request"),
    ({"env": {"": "x"}}, "invalid_request"),
    ({"env": {"A=B": "x"}}, "invalid_request"),
    ({"env": {"1": "x"}}, "invalid_request"),
    ({"env": {"A": NUL}}, "invalid_request"),
    ({"metadata": {"": "x"}}, "invalid_request"),
    ({"metadata": {NUL: "x"}}, "invalid_request"),
    ({"metadata": {"k": "v" * 4097}}, "invalid_request"),
    ({"metadata": {str(number): "" for number in range(65)}}, "invalid_request"),
    ({"idle_timeout_s": 0.5}, "invalid_request"),
    ({"idle_timeout_s": -1}, "invalid_request"),
    ({"max_lifetime_s": 0}, "invalid_request"),
    ({"max_lifetime_s": 1e30}, "invalid_request"),
]
_COMMANDS: list[tuple[dict[str, Any], str]] = [
    ({"command": ""}, "invalid_request"),
    ({"command": []}, "invalid_request"),
    ({"command": [""]}, "invalid_request"),
    ({"command": NUL}, "invalid_request"),
    ({"command": ["echo", NUL]}, "invalid_request"),
    ({"command": "x" * (3 * 1024 * 1024 + 1)}, "invalid_request"),
    ({"command": "true", "cwd": NUL}, "invalid_request"),
    ({"command": "true", "cwd": "/nowhere"}, "invalid_path"),
    ({"command": "true", "cwd": "kept.txt"}, "invalid_path"),
    ({"command": "true", "cwd": LONG_PATH}, "invalid_path"),
    ({"command": "true", "env": {"A": NUL}}, "invalid_request"),
    ({"command": "true", "env": {"A=": "x"}}, "invalid_request"),
    ({"command": "true", "user": "nobody-of-that-name"}, "unknown_user"),
    ({"command": "true", "user": NUL}, "invalid_request"),
    ({"command": "true", "user": "u" * 10_000}, "unknown_user"),
    ({"command": "true", "timeout_s": -5}, "invalid_request"),
    ({"command": "true", "timeout_s": 1e9}, "invalid_request"),
    ({"command": "true", "keep_bytes": -1}, "invalid_request"),
    ({"command": "true", "keep_bytes": (32 << 20) + 1}, "invalid_request"),
]
_PATHS = [
    ("", "invalid_path"),
    ("a%00b", "invalid_path"),
    (LONG_PATH, "invalid_path"),
    (LONG_NAME, "invalid_path"),
    ("nothing/here", "file_not_found"),
    ("kept.txt/below", "not_a_directory"),
    ("/root/secret", "permission_denied"),
    ("%FF%FE", "file_not_found"),
]


def creating() -> Iterator[Case]:
    for path in ("/api/sessions", "/create_session"):
        yield from ((Request("POST", path, json=body, what=f"{body!r:.80}"), code) for body, code in _NEW_BODIES)
        for key in ("k" * 256, "ü"):
            headers = {"Idempotency-Key": key}
            yield Request("POST", path, json={}, headers=headers, what=f"key {key[:10]!r}"), "invalid_request"


def changing() -> Iterator[Case]:
    wrong = [({"metadata": {"k": "v" * 4097}}, ""), ({"idle_timeout_s": 0.1}, ""), ({"max_lifetime_s": -1}, "")]
    for body, _ in wrong:
        yield Request("PATCH", _S, json=body, what=f"{body!r:.80}"), "invalid_request"
    for query in ({"metadata": "x"}, {"metadata": "=x"}, {"limit": "0"}, {"limit": "1001"}, {"state": "nothing"}):
        yield Request("GET", "/api/sessions", query=query, what=f"{query}"), "invalid_request"


def commands() -> Iterator[Case]:
    body: dict[str, Any]
    for path in (f"{_S}/exec", f"{_S}/processes"):
        yield from ((Request("POST", path, json=body, what=f"{body!r:.80}"), code) for body, code in _COMMANDS)
    for body in ({"stdin_base64": "%%%"}, {"stdin": "a", "stdin_base64": "YQ=="}, {"timeout_s": 86401}):
        yield Request("POST", f"{_S}/exec", json={"command": "true", **body}, what=f"{body}"), "invalid_request"
    stream = {"Accept": "text/event-stream", "Idempotency-Key": "k"}
    yield (
        Request("POST", f"{_S}/exec", json={"command": "true"}, headers=stream, what="a stream with a key"),
        ("invalid_request"),
    )
    for process_id in ("kept",):
        body = {"command": "true", "process_id": process_id}
        yield Request("POST", f"{_S}/processes", json=body, what="an id that is taken"), "conflict"
    for process_id in ("../x", NUL, "p" * 65, "a b"):
        body = {"command": "true", "process_id": process_id}
        yield Request("POST", f"{_S}/processes", json=body, what=f"id {process_id[:10]!r}"), "invalid_request"
    for size in ({"rows": 0}, {"columns": 10_000}, {"rows": -1}):
        body = {"command": "true", "terminal": size}
        yield Request("POST", f"{_S}/processes", json=body, what=f"{size}"), "invalid_request"
        yield Request("POST", f"{_P}/resize", json=size, what=f"{size}"), "invalid_request"


def processes() -> Iterator[Case]:
    for signal in ("NOTHING", "", 0, -1, 65, 10**30, "9", NUL, "S" * 10_000):
        yield Request("POST", f"{_P}/signal", json={"signal": signal}, what=f"signal {signal!r:.20}"), "invalid_request"
    for body in ({"data_base64": "&"}, {"data": "a", "data_base64": "YQ=="}):
        yield Request("POST", f"{_P}/stdin", json=body, what=f"{body}"), "invalid_request"
    for grace in (-1, 601, 1e300):
        yield Request("POST", f"{_P}/kill", json={"grace_s": grace}, what=f"grace {grace}"), "invalid_request"
    for last in ("x", "-1", "9" * 19, "9" * 5000, "1.5", " ", "٣"):
        headers = {"Accept": "text/event-stream", "Last-Event-ID": last}
        if last.isascii() and last.strip():
            yield Request("GET", f"{_P}/output", headers=headers, what=f"after {last[:20]}"), "invalid_request"


def files() -> Iterator[Case]:
    for path, code in _PATHS:
        for good in GOOD:
            if "path" in good.query and good.method != "PUT" and not good.path.endswith("/volumes"):
                yield replace(good, query={**good.query, "path": path}, what=f"path {path[:20]}"), code
    for path, code in (("", "invalid_path"), ("a%00b", "invalid_path"), (LONG_PATH, "invalid_path"),
                       (LONG_NAME, "invalid_path"), ("kept.txt/x", "not_a_directory"), ("/etc/x", "permission_denied"),
                       ("/workspace", "is_directory"), ("folder/", "is_directory")):  # fmt: skip
        yield Request("PUT", f"{_S}/files/content", query={"path": path}, raw=b"x", what=f"path {path[:20]}"), code
    for mode in ("9", "abc", "-1", "77777", "0o755"):
        query = {"path": "x", "mode": mode}
        yield Request("PUT", f"{_S}/files/content", query=query, raw=b"", what=f"mode {mode}"), "invalid_request"
    for path, code in ((NUL, "invalid_path"), ("", "invalid_path"), (LONG_PATH, "invalid_path"),
                       ("kept.txt", "exists"), ("/etc/x", "permission_denied")):  # fmt: skip
        yield Request("POST", f"{_S}/files/mkdir", json={"path": path}, what=f"path {path[:20]!r}"), code
        if path != "kept.txt":
            body = {"source": "kept.txt", "target": path}
            yield Request("POST", f"{_S}/files/move", json=body, what=f"to {path[:20]!r}"), code
            body = {"session_id": "{session_id}", "path": path, "content": "x"}
            yield Request("POST", "/api/e2b/files", json=body, what=f"path {path[:20]!r}"), code
            body = {"path": path, "content": "x"}
            yield Request("POST", "/api/e2b/files/{session_id}", json=body, what=f"path {path[:20]!r}"), code
    yield Request("POST", f"{_S}/files/move", json={"source": "no", "target": "x"}, what="nothing"), "file_not_found"
    yield Request("POST", f"{_S}/files/mkdir", json={"path": "x", "mode": 4096}, what="mode 4096"), "invalid_request"
    for user in ("nobody-of-that-name", "%00", "u" * 5000):
        for part in ("", "/stat", "/content", "/archive", "/watch", "/search"):
            query = {"path": "kept.txt" if part in ("/stat", "/content") else "/workspace", "user": user}
            query |= {"glob": "*"} if part == "/search" else {}
            yield Request("GET", f"{_S}/files{part}", query=query, what=f"user {user[:20]}"), "unknown_user"


def ranges() -> Iterator[Case]:
    for text in (
        "bytes=5-2",
        "bytes=-",
        "bytes=--5",
        "bytes=a-b",
        "lines=0-1",
        "bytes=0-1,3-4",
        "bytes=" + "9" * 100 + "-",
        "x",
    ):
        request = Request("GET", f"{_S}/files/content", query={"path": "kept.txt"}, headers={"Range": text})
        yield replace(request, what=f"range {text[:20]}"), "invalid_request"
    for text in ("bytes=15-", "bytes=-0", "bytes=999999999999999999-"):
        request = Request("GET", f"{_S}/files/content", query={"path": "kept.txt"}, headers={"Range": text})
        yield replace(request, what=f"range {text}"), "range_not_satisfiable"


def which_session() -> Iterator[Case]:
    """The flat endpoints name sessions in their bodies and queries."""
    body: dict[str, Any]
    for body in ({}, {"session_id": "{session_id}", "thread_id": "t"}, {"session_id": "", "thread_id": ""}):
        yield Request("POST", "/execute", json={"command": "true", **body}, what=f"{body}"), "invalid_request"
        yield Request("POST", "/cleanup", json=body, what=f"{body}"), "invalid_request"
        yield Request("GET", "/list_files", query=body, what=f"{body}"), "invalid_request"
        yield Request("GET", "/download_file", query={"path": "x", **body}, what=f"{body}"), "invalid_request"
        yield Request("GET", "/api/e2b/files", query=body, what=f"{body}"), "invalid_request"
        yield Request("POST", "/api/e2b/files", json={"path": "x", **body}, what=f"{body}"), "invalid_request"
        yield Request("DELETE", "/api/e2b/files", query={"path": "x", **body}, what=f"{body}"), "invalid_request"
    unknown = {"session_id": UNKNOWN_ID}
    yield Request("POST", "/execute", json={"command": "true", **unknown}, what="unknown"), "session_not_found"
    yield Request("GET", "/list_files", query=unknown, what="unknown"), "session_not_found"
    yield Request("GET", "/list_files", query={"thread_id": "nobody's"}, what="unknown thread"), "session_not_found"
    for thread_id in ("t" * 256, NUL):
        body = {"command": "true", "thread_id": thread_id}
        yield Request("POST", "/execute", json=body, what=f"thread {thread_id[:10]!r}"), "invalid_request"
    for body, code in _COMMANDS:
        if set(body) == {"command"} and isinstance(body["command"], str):
            yield Request("POST", "/execute", json={**body, "thread_id": "new"}, what=f"{body!r:.80}"), code
    for timeout in (-1, 1e9, 86401):
        body = {"command": "true", "thread_id": "new", "timeout": timeout}
        yield Request("POST", "/execute", json=body, what=f"timeout {timeout}"), "invalid_request"
    code_body = {"session_id": "{session_id}", "code": "1"}
    for change, code in (({"language": "cobol"}, "invalid_request"), (unknown, "session_not_found")):
        yield Request("POST", "/api/e2b/execute", json={**code_body, **change}, what=f"{change}"), code


def forms() -> Iterator[Case]:
    def form(raw: bytes, what: str, kind: str = FORM_TYPE) -> Request:
        return Request("POST", "/upload_file", raw=raw, headers={"Content-Type": kind}, what=what)

    session, file = FORM.split(b"--cut\r\n")[1:]
    session, file = b"--cut\r\n" + session, b"--cut\r\n" + file.removesuffix(b"--cut--\r\n")
    end = b"--cut--\r\n"
    yield form(FORM, "no boundary", "multipart/form-data"), "invalid_request"
    yield form(FORM, "an empty boundary", 'multipart/form-data; boundary=""'), "invalid_request"
    yield form(FORM, "another boundary", "multipart/form-data; boundary=other"), "invalid_request"
    yield form(FORM, "a boundary without end", "multipart/form-data; boundary=" + "b" * 5000), "invalid_request"
    yield form(FORM, "not a form", "text/plain"), "invalid_request"
    yield form(b"", "empty"), "invalid_request"
    yield form(b"garbage", "garbage"), "invalid_request"
    yield form(FORM[:-12], "cut off"), "invalid_request"
    yield form(session + end, "no file"), "invalid_request"
    yield form(session + file + file + end, "two files"), "invalid_request"
    yield form(file + end, "no session"), "invalid_request"
    yield form(FORM.replace(b"{session_id}", UNKNOWN_ID.encode()), "unknown session"), "session_not_found"
    yield form(FORM.replace(b"up.txt", b""), "no name"), "invalid_request"
    for name in (b"..", b".", b"../..", b"a/.."):
        yield form(FORM.replace(b"up.txt", name), f"named {name!r}"), "invalid_request"
    yield form(FORM.replace(b"up.txt", b"n" * 256), "a long name"), "invalid_path"
    yield form(FORM.replace(b"up.txt", b"a\0b"), "a NUL in the name"), "invalid_path"
    yield form(FORM.replace(b"up.txt", b"\xff\xfe"), "a name that is not UTF-8"), "invalid_request"
    yield form(FORM.replace(b'name="file"; ', b""), "a part without a name"), "invalid_request"
    many = session.replace(b"session_id", b"x") * 101
    yield form(many + end, "many parts"), "too_large"
    yield form(session.replace(b"{session_id}", b"x" * 70_000) + file + end, "a huge field"), "too_large"
    yield form(file.replace(b"up.txt", b"x" * 20_000) + end, "a huge header"), "invalid_request"
    for path, code in (
        (b"/etc/passwd", "permission_denied"),
        (b"../../etc/passwd", "permission_denied"),
        (b"..", "invalid_request"),
        (b"/workspace", "is_directory"),
        (b"a\0b", "invalid_path"),
    ):
        field = session.replace(b"session_id", b"path", 1).replace(b"{session_id}", path)
        yield form(session + field + file + end, f"to {path!r}"), code


def archives() -> Iterator[Case]:
    for what, raw in _tars():
        yield Request("PUT", f"{_S}/files/archive", query={"path": "unpacked"}, raw=raw, what=what), "invalid_request"


def _tars() -> Iterator[tuple[str, bytes]]:
    whole = _tar("inside", data=b"x" * 2000)
    yield "garbage", b"garbage" * 200
    yield "cut off in a file", whole[:1024]
    yield "cut off in a header", whole[:100]
    yield "a broken checksum", whole[:148] + b"99999999" + whole[156:]
    yield "a huge size", _resealed(whole[:124] + b"77777777777\0" + whole[136:])
    yield "a negative size", _resealed(whole[:124] + b"\xff" * 12 + whole[136:])
    yield "a way out", _tar("../../etc/evil")
    yield "a hidden way out", _tar("a/../../../etc/evil")
    yield "a device", _tar("null", type=tarfile.CHRTYPE, devmajor=1, devminor=3)
    yield "a pipe", _tar("pipe", type=tarfile.FIFOTYPE)
    yield "a link that leads out", _tar("link", type=tarfile.LNKTYPE, linkname="../../etc/passwd")


def _tar(name: str, data: bytes = b"", **attributes: Any) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        info = tarfile.TarInfo(name)
        info.size = len(data)
        for attribute, value in attributes.items():
            setattr(info, attribute, value)
        tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def _resealed(tar: bytes) -> bytes:
    total = sum(tar[:148]) + 8 * 32 + sum(tar[156:512])
    return tar[:148] + f"{total:06o}\0 ".encode() + tar[156:]


TABLES = {
    table.__name__: table
    for table in (creating, changing, commands, processes, files, ranges, which_session, forms, archives)
}
