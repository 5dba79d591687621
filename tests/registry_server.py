"""A real registry on loopback (Debian's docker-registry), filled by the tests; and one that lies."""

import base64
import contextlib
import gzip
import hashlib
import io
import json
import shutil
import subprocess
import tarfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from server_process import free_port

from warren.model.oci_image import read_platform

USER, PASSWORD = "ali", "open sesame"
_HTPASSWD = f"{USER}:$2b$05$abcdefghijklmnopqrstuupx2xBUC4954936wVIjyyPHmUBFu0wCW\n"  # bcrypt of the password
OCI, DOCKER = "application/vnd.oci.image", "application/vnd.docker"
HERE = {"os": "linux", "architecture": read_platform("").architecture}


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def tar_of(files: Mapping[str, bytes | str | None]) -> bytes:
    """Makes a tar. Values are the content of a file as bytes, the target of a link as text, or None for a directory."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.mode = 0o755
            if content is None:
                info.type = tarfile.DIRTYPE
            elif isinstance(content, str):
                info.type, info.linkname = tarfile.SYMTYPE, content
            else:
                info.size = len(content)
            tar.addfile(info, io.BytesIO(content) if isinstance(content, bytes) else None)
    return out.getvalue()


class Image:
    """An image as a registry has it: its blobs and its manifest."""

    def __init__(
        self,
        *layers: bytes,
        config: Mapping[str, Any] | None = None,
        packed: Callable[[bytes], bytes] = gzip.compress,
        docker: bool = False,
        platform: Mapping[str, str] = HERE,
    ) -> None:
        said = {**platform, "config": config or {}, "rootfs": {"diff_ids": [digest_of(layer) for layer in layers]}}
        self.config = json.dumps(said).encode()
        self.layers = [packed(layer) for layer in layers]
        kind = f"{DOCKER}.image.rootfs.diff.tar.gzip" if docker else f"{OCI}.layer.v1.tar+gzip"
        config_kind = f"{DOCKER}.container.image.v1+json" if docker else f"{OCI}.config.v1+json"
        self.type = f"{DOCKER}.distribution.manifest.v2+json" if docker else f"{OCI}.manifest.v1+json"
        self.values: dict[str, Any] = {
            "schemaVersion": 2,
            "mediaType": self.type,
            "config": descriptor(self.config, config_kind),
            "layers": [descriptor(layer, kind) for layer in self.layers],
        }

    @property
    def manifest(self) -> bytes:
        return json.dumps(self.values).encode()

    @property
    def blobs(self) -> list[bytes]:
        return [self.config, *self.layers]


def descriptor(data: bytes, kind: str) -> dict[str, Any]:
    return {"mediaType": kind, "digest": digest_of(data), "size": len(data)}


class RegistryServer:
    """`host` is HOST:PORT."""

    def __init__(self, folder: Path, *, password: bool = False) -> None:
        self.host = f"127.0.0.1:{free_port()}"
        self._headers = {}
        auth = ""
        if password:
            (folder / "htpasswd").write_text(_HTPASSWD)
            auth = f"auth: {{htpasswd: {{realm: tests, path: {folder}/htpasswd}}}}\n"
            self._headers = {"Authorization": "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()}
        (folder / "config.yml").write_text(
            f"version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {folder}/data}}}}\n"
            f"http: {{addr: '{self.host}'}}\n{auth}"
        )
        program = shutil.which("docker-registry")
        assert program, "scripts/system-packages test installs docker-registry"
        with open(folder / "log", "wb") as log:
            self._process = subprocess.Popen([program, "serve", str(folder / "config.yml")], stdout=log, stderr=log)
        deadline = time.monotonic() + 30
        while not self._answers():
            assert time.monotonic() < deadline, (folder / "log").read_text()
            time.sleep(0.05)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()

    def _answers(self) -> bool:
        try:
            self._send("GET", "/v2/")
        except OSError:
            return False
        return True

    def push(self, path: str, tag: str, image: Image) -> str:
        """Uploads an image and returns the digest of its manifest."""
        for blob in image.blobs:
            location = self._send("POST", f"/v2/{path}/blobs/uploads/")["Location"]
            mark = "&" if "?" in location else "?"
            self._send("PUT", f"{location}{mark}digest={digest_of(blob)}", blob, "application/octet-stream")
        self._send("PUT", f"/v2/{path}/manifests/{tag}", image.manifest, image.type)
        return digest_of(image.manifest)

    def push_index(self, path: str, tag: str, images: Mapping[str, Image], *, docker: bool = False) -> str:
        """Uploads images, given by platform, and an index of them."""
        entries = []
        for platform, image in images.items():
            self.push(path, digest_of(image.manifest), image)
            system, architecture = platform.split("/")
            entry = descriptor(image.manifest, image.type)
            entries.append({**entry, "platform": {"os": system, "architecture": architecture}})
        kind = f"{DOCKER}.distribution.manifest.list.v2+json" if docker else f"{OCI}.index.v1+json"
        data = json.dumps({"schemaVersion": 2, "mediaType": kind, "manifests": entries}).encode()
        self._send("PUT", f"/v2/{path}/manifests/{tag}", data, kind)
        return digest_of(data)

    def _send(self, method: str, url: str, data: bytes | None = None, kind: str = "") -> Any:
        url = url if url.startswith("http") else f"http://{self.host}{url}"
        headers = {**self._headers, **({"Content-Type": kind} if kind else {})}
        request = urllib.request.Request(url, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=30) as response:
            return response.headers


@contextlib.contextmanager
def running_registry(folder: Path, *, password: bool = False) -> Iterator[RegistryServer]:
    folder.mkdir()
    server = RegistryServer(folder, password=password)
    try:
        yield server
    finally:
        server.close()


class LyingRegistry:
    """Serves one image. `answer` may answer a request differently and then returns True. `asked` lists the path and the
    headers of every request."""

    def __init__(self, image: Image, answer: Callable[[BaseHTTPRequestHandler], bool] = lambda _: False) -> None:
        self.image, self.answer = image, answer
        self.asked: list[tuple[str, dict[str, str]]] = []
        lying = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                lying.asked.append((self.path, dict(self.headers)))
                with contextlib.suppress(ConnectionError):
                    if not lying.answer(self):
                        lying.serve(self)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.host = f"127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def serve(self, handler: BaseHTTPRequestHandler) -> None:
        by_digest = {digest_of(blob): blob for blob in self.image.blobs}
        wanted = handler.path.rpartition("/")[2]
        if "/manifests/" in handler.path:
            send(handler, self.image.manifest, self.image.type)
        elif wanted in by_digest:
            send(handler, by_digest[wanted])
        else:
            send(handler, b"", status=404)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def send(
    handler: BaseHTTPRequestHandler, data: bytes, kind: str = "application/octet-stream", *, status: int = 200,
    length: int | None = None, **headers: str,
) -> None:  # fmt: skip
    handler.send_response(status)
    handler.send_header("Content-Type", kind)
    handler.send_header("Content-Length", str(len(data) if length is None else length))
    for name, value in headers.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    handler.wfile.write(data)


@contextlib.contextmanager
def lying_registry(
    image: Image, answer: Callable[[BaseHTTPRequestHandler], bool] = lambda _: False
) -> Iterator[LyingRegistry]:
    server = LyingRegistry(image, answer)
    try:
        yield server
    finally:
        server.close()


def empty_registry() -> contextlib.AbstractContextManager[LyingRegistry]:
    """One that has no image."""

    def refuse(handler: BaseHTTPRequestHandler) -> bool:
        send(handler, b"", status=404)
        return True

    return lying_registry(Image(), refuse)
