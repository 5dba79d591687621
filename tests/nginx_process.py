"""A real nginx with deploy/nginx/warren.conf, with its own directory and ports. It uses nothing in /etc."""

import contextlib
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from certificates import NAME, Certificates
from server_process import free_port
from this_run import patience

CONF = Path(__file__).parents[1] / "deploy" / "nginx" / "warren.conf"

_PATIENCE_S = patience(30.0)
MAIN = """
worker_processes 1;
pid {prefix}/nginx.pid;
error_log {prefix}/error.log info;
{user}
events {{ worker_connections 1024; }}
http {{
    client_body_temp_path {prefix}/body;
    proxy_temp_path {prefix}/proxy;
    fastcgi_temp_path {prefix}/fastcgi;
    uwsgi_temp_path {prefix}/uwsgi;
    scgi_temp_path {prefix}/scgi;
    include {prefix}/warren.conf;
    include {prefix}/previews.con[f];
}}
"""


class NginxProcess:
    """Stands in front of the server at `upstream_port`. `http` and `https` are its ports, `name` is its host name."""

    def __init__(
        self,
        prefix: Path,
        certificates: Certificates,
        upstream_port: int,
        name: str = NAME,
        *,
        previews: bool = False,
    ) -> None:
        self.prefix, self.name = prefix, name
        self.http, self.https = free_port(), free_port()
        self._process: subprocess.Popen[bytes] | None = None
        user = "user root;" if os.geteuid() == 0 else ""
        (prefix / "nginx.conf").write_text(MAIN.format(prefix=prefix, user=user))
        (prefix / "warren.conf").write_text(self._adapted(CONF.read_text(), certificates, upstream_port))
        if previews:
            text = (CONF.parent / "previews.conf").read_text()
            (prefix / "previews.conf").write_text(_changed(text, self._changes(certificates)))

    @property
    def url(self) -> str:
        return f"https://{self.name}:{self.https}"

    @property
    def log(self) -> str:
        return (self.prefix / "error.log").read_text() + (self.prefix / "output").read_text()

    @property
    def access_log(self) -> str:
        return (self.prefix / "warren.log").read_text()

    def start(self) -> None:
        program = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
        assert program is not None, "nginx is not installed: scripts/system-packages test"
        argv = [program, "-p", str(self.prefix), "-c", "nginx.conf", "-e", "error.log", "-g", "daemon off;"]
        with (self.prefix / "output").open("wb") as output:
            self._process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        deadline = time.monotonic() + _PATIENCE_S
        while not self._listens():
            assert self._process.poll() is None, self.log
            assert time.monotonic() < deadline, self.log
            time.sleep(0.02)

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(_PATIENCE_S)

    def _listens(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.https), 1):
            return True
        return False

    def _adapted(self, text: str, certificates: Certificates, upstream_port: int) -> str:
        """Returns the delivered file with other ports, paths and names. Fails if one of them is not in the file."""
        changes = {
            **self._changes(certificates),
            r"listen 80\b": f"listen 127.0.0.1:{self.http}",
            r"server 127\.0\.0\.1:8000;": f"server 127.0.0.1:{upstream_port};",
            r"server_name sandboxes\.example": f"server_name {self.name}",
        }
        return _changed(text, changes)

    def _changes(self, certificates: Certificates) -> dict[str, str]:
        return {
            r"^ *listen \[::\]:.*\n": "",
            r"listen 443\b": f"listen 127.0.0.1:{self.https}",
            r"/etc/letsencrypt/\S+/fullchain\.pem": str(certificates.cert),
            r"/etc/letsencrypt/\S+/privkey\.pem": str(certificates.key),
            r"/var/log/nginx/": f"{self.prefix}/",
        }


def _changed(text: str, changes: dict[str, str]) -> str:
    for pattern, replacement in changes.items():
        text, count = re.subn(pattern, replacement, text, flags=re.MULTILINE)
        assert count, pattern
    return text


@contextlib.contextmanager
def running_nginx(
    prefix: Path, certificates: Certificates, upstream_port: int, *, previews: bool = False
) -> Iterator[NginxProcess]:
    nginx = NginxProcess(prefix, certificates, upstream_port, previews=previews)
    try:
        nginx.start()
        yield nginx
    finally:
        nginx.stop()
