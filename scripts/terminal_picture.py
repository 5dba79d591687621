"""Makes docs/terminal.svg, the picture in the README, from a real run: `sudo scripts/terminal_picture.py`.

The commands run with the `warren` of this checkout, against the server of WARREN_URL.
"""

import os
import re
import subprocess
import sys
from html import escape
from pathlib import Path

ROOT = Path(__file__).parents[1]
COMMANDS = (
    "warren exec --thread demo -- bash -c 'whoami; pwd; echo \"print(6 * 7)\" > answer.py'",
    "warren exec --thread demo -- python3 answer.py",
    "warren exec --thread demo -- bash -c 'curl -s --max-time 2 example.com; echo curl ended with $?'",
    "warren ps",
    "warren exec --thread demo --timeout 1 -- sleep 60",
)
WIDTH, LINE, LEFT, TOP, LETTER = 100, 19, 20, 46, 8.02
STYLE = """
text{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;white-space:pre;fill:#d7dce2}
.p{fill:#7ee787}.c{fill:#fff;font-weight:600}
"""


def main() -> int:
    lines: list[tuple[str, str]] = []
    for command in COMMANDS:
        lines += [("command", command), *(("output", line) for line in run(command))]
    (ROOT / "docs" / "terminal.svg").write_text(picture(lines))
    return 0


def run(command: str) -> list[str]:
    """Runs a command in a terminal and returns what a person would see, with the long ids cut: they differ from run to
    run."""
    path = f"{ROOT / '.venv' / 'bin'}:{os.environ['PATH']}"
    environ = {**os.environ, "PATH": path, "COLUMNS": str(WIDTH), "NO_COLOR": "1"}
    in_terminal = ["script", "-qec", command, "/dev/null"]
    done = subprocess.run(
        in_terminal, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
    )
    return [re.sub(r"\b(s_[0-9a-f]{8})[0-9a-f]+", r"\1", line)[:WIDTH] for line in done.stdout.splitlines()]


def picture(lines: list[tuple[str, str]]) -> str:
    height, width = TOP + LINE * len(lines) + 20, round(LEFT * 2 + WIDTH * LETTER)
    rows = []
    for number, (kind, text) in enumerate(lines):
        prompt = '<tspan class="p">$ </tspan>' if kind == "command" else ""
        shown = f'<tspan class="c">{escape(text)}</tspan>' if kind == "command" else escape(text)
        rows.append(f'<text x="{LEFT}" y="{TOP + 14 + LINE * number}" xml:space="preserve">{prompt}{shown}</text>')
    dots = "".join(
        f'<circle cx="{LEFT + 18 * at}" cy="20" r="6" fill="{colour}"/>'
        for at, colour in enumerate(("#ff5f57", "#febc2e", "#28c840"))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'role="img" aria-label="A session with Warren in a terminal"><style>{STYLE}</style>'
        f'<rect width="100%" height="100%" rx="10" fill="#161b22"/>{dots}\n' + "\n".join(rows) + "\n</svg>\n"
    )


if __name__ == "__main__":
    sys.exit(main())
