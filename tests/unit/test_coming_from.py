"""docs/coming-from.md: nothing of the earlier systems' documents is missing, and what takes its place exists."""

import re
import shlex
from pathlib import Path

import click
import pytest

from warren.cli.main import cli

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "coming-from.md").read_text()
_TABLE = PAGE[PAGE.index("## Command lines and files") : PAGE.index("## Cloudflare Workers")]
_ROWS = [line.split(" | ") for line in _TABLE.splitlines() if line.startswith("| `")]
_CODE = re.compile(r"`([^`]+)`")
_COMMANDS = [code for code in _CODE.findall(PAGE) if re.match(r"(sudo )?warren [a-z]", code)]

FILES = [
    "sandbox_server.py", "sandbox_client.py", "requirements.txt", "langgraph_example.py", "Dockerfile.sandbox",
    "quickstart.sh", "SETUP_GUIDE.md", "README.md", "ARCHITECTURE.md", "sandbox_server_v2.py", "coordinator.py",
    "sandbox_client_v2.py", "Dockerfile.secure", "Dockerfile.worker", "Dockerfile.coordinator",
    "docker-compose.yml", "requirements-worker.txt", "requirements-coordinator.txt", "README_V2.md",
    "SETUP_GUIDE_V2.md", "environments/", "agents/", "tools/", "prompts/", "unified_manager.py", "e2b_manager.py",
    "session_manager.py", "state_manager.py", "lifecycle.py", "sessions/", "artifacts/", "sandbox_runtime",
    "e2b_guide.md", "e2b_examples.md", "sandbox-prompt.md", "INTEGRATION_GUIDE.md", "ARCHITECTURE_DIAGRAM.md",
    "API_REFERENCE.md",
]  # fmt: skip
LINES = [
    "cd ~/sandbox-server",
    "chmod +x quickstart.sh",
    "./quickstart.sh",
    "python3 -m venv venv",
    "source venv/bin/activate",
    "pip install -r requirements.txt",
    "pip install -r requirements-worker.txt",
    "docker pull ubuntu:22.04",
    "python sandbox_server.py",
    "python sandbox_server_v2.py",
    "python sandbox_client_v2.py --test",
    "docker build -f Dockerfile.sandbox -t custom-sandbox:latest .",
    "docker build -f Dockerfile.secure -t sandbox-secure:latest .",
    "docker run sandbox-secure:latest whoami",
    "docker run --rm sandbox-secure:latest id",
    "docker-compose up -d",
    "docker-compose logs worker1",
    "docker-compose restart worker1",
    "worker4:",
    "curl http://localhost:8000/health",
    "curl http://localhost:5000/health",
    "curl http://worker-ip:5000/health",
    "curl -X POST http://your-vps:5000/create_session",
    "curl -X POST http://localhost:8000/api/sessions",
    "go install github.com/rakyll/hey@latest",
    "hey -n 1000 -c 50 -m POST http://localhost:8000/create_session",
    "redis-cli -h redis-ip ping",
    "netstat -an",
    "sudo ufw allow 6379/tcp",
    "sudo usermod -aG docker $USER",
    "sudo lsof -i :5000",
    "docker ps -a",
    "xargs docker rm -f",
    "docker system prune -a",
]


def test_every_command_line_and_file_of_the_documents_has_its_counterpart() -> None:
    shown = [code for row in _ROWS for code in _CODE.findall(row[0])]
    assert [line for line in LINES if line not in shown] == []
    assert [name for name in FILES if not any(each.endswith(name) for each in shown)] == []
    assert [row for row in _ROWS if len(row) != 2 or len(row[1]) < 5] == []


@pytest.mark.parametrize("line", sorted(set(_COMMANDS)))
def test_a_command_that_takes_a_place_exists_with_its_flags(line: str) -> None:
    words = [word for word in shlex.split(re.sub(r"\$\(.*\)", "", line)) if word != "sudo"]
    command: click.Command = cli
    for word in words[1:]:
        if not isinstance(command, click.Group):
            break
        found = command.get_command(click.Context(command), word)
        assert found is not None, f"there is no `{line}`"
        command = found
    known = {flag for each in command.params for flag in (*each.opts, *each.secondary_opts)}
    flags = [word for word in words[: words.index("--") if "--" in words else None] if word.startswith("-")]
    assert set(flags) <= known


def test_every_file_that_takes_a_place_exists() -> None:
    named = re.findall(r"\b(?:deploy|examples|packages|tests)/[\w./-]*\w", PAGE)
    assert len(named) > 5
    assert [path for path in named if not (ROOT / path).exists()] == []
