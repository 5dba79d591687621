"""A real nginx with deploy/nginx/cluster.conf in front of servers on loopback, with its own directory and port."""

import os
import re
from collections.abc import Sequence
from pathlib import Path

from nginx_process import MAIN, NginxProcess
from server_process import free_port

CONF = Path(__file__).parents[1] / "deploy" / "nginx" / "cluster.conf"
UPSTREAM = re.compile(r"server (coordinator-\d+):8000")


class ClusterNginx(NginxProcess):
    """Stands in front of the servers at `ports`, one for each coordinator that the file names."""

    def __init__(self, prefix: Path, ports: Sequence[int]) -> None:
        self.prefix, self.name = prefix, "127.0.0.1"
        self.http = self.https = free_port()
        self._process = None
        user = "user root;" if os.geteuid() == 0 else ""
        (prefix / "nginx.conf").write_text(MAIN.format(prefix=prefix, user=user))
        (prefix / "warren.conf").write_text(self._for_ports(CONF.read_text(), ports))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http}"

    def _for_ports(self, text: str, ports: Sequence[int]) -> str:
        """Returns the delivered file with other addresses and paths. Fails if one of them is not in the file."""
        assert len(UPSTREAM.findall(text)) == len(ports)
        left = iter(ports)
        text = UPSTREAM.sub(lambda _: f"server 127.0.0.1:{next(left)}", text)
        for pattern, replacement in {
            r"listen 8000;": f"listen 127.0.0.1:{self.http};",
            r"/var/log/nginx/": f"{self.prefix}/",
        }.items():
            text, count = re.subn(pattern, replacement, text)
            assert count, pattern
        return text
