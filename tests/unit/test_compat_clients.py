"""Where the clients of packages/compat look for their server when a program names none."""

import pytest
import sandbox_client
import sandbox_client_v2


@pytest.mark.parametrize(
    ("environ", "first", "second"),
    [
        ({}, "localhost:5000", "localhost:8000"),
        ({"PORT": "5050"}, "localhost:5050", "localhost:8000"),
        ({"PORT": "5050", "WARREN_PORT": "8080"}, "localhost:8080", "localhost:8080"),
        ({"PORT": "tcp://10.0.0.1:80"}, "localhost:5000", "localhost:8000"),
        ({"PORT": "5050", "WARREN_URL": "http://far:9000"}, "far:9000", "far:9000"),
    ],
)
def test_the_server_is_found(monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], first: str, second: str) -> None:
    for name in ("PORT", "WARREN_PORT", "WARREN_URL"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert f"http://{first}," in repr(sandbox_client.SandboxClient())
    assert f"http://{second}," in repr(sandbox_client_v2.SandboxClient())
    assert "http://named:1," in repr(sandbox_client.SandboxClient("http://named:1"))
