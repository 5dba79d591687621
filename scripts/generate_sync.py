"""Makes the blocking client from the one for asyncio: `python scripts/generate_sync.py [--check]`.

Every file of sdk/aio but the transport and the platform becomes one of sdk/blocking, and the clients' contract suite
becomes that of the blocking client: `async` and `await` go, names lose their `Async`. With --check nothing is
written, and the exit code says whether it is all up to date.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
SDK = ROOT / "src" / "warren" / "sdk"
CONTRACTS = ROOT / "tests" / "contract"
BY_HAND = {"__init__.py", "transport.py", "platform.py"}
_RULES = "C416,F401,I,SIM117,UP028"
NOTE = "# Made from {source} by scripts/generate_sync.py: edit that one.\n"
WORDS = [
    (r"\basync (def|with|for)\b", r"\1"),
    (r"\bawait ", ""),
    (r"__aenter__", "__enter__"),
    (r"__aexit__", "__exit__"),
    (r"\baclosing\b", "closing"),
    (r"\baclose\b", "close"),
    (r"\banext\b", "next"),
    (r"\bAsyncExitStack\b", "ExitStack"),
    (r"\benter_async_context\b", "enter_context"),
    (r"\bAsyncGenerator\[(.*?), None\]", r"Generator[\1, None, None]"),
    (r"\bAwaitable\[(\w+)\]", r"\1"),
    (r"\basynccontextmanager\b", "contextmanager"),
    (r"\bAbstractAsyncContextManager\b", "AbstractContextManager"),
    (r"\bAsyncIterable\b", "Iterable"),
    (r"\bAsyncIterator\b", "Iterator"),
    (r"\bwarren\.sdk\.aio\b", "warren.sdk.blocking"),
    (r"`async with`", "`with`"),
    (r"\n *pytestmark = pytest\.mark\.anyio\n", "\n"),
    (r"\bAsync([A-Z]\w*)", r"\1"),
]


def main() -> int:
    check = sys.argv[1:] == ["--check"]
    stale = []
    for source, target in pairs():
        text = formatted(made(source), target)
        if not target.exists() or target.read_text() != text:
            stale.append(target.name)
            if not check:
                target.write_text(text)
    if check and stale:
        sys.stderr.write(f"not up to date: {', '.join(stale)}; run python scripts/generate_sync.py\n")
    return int(check and bool(stale))


def pairs() -> list[tuple[Path, Path]]:
    written = [path for path in sorted((SDK / "aio").glob("*.py")) if path.name not in BY_HAND]
    suites = sorted(CONTRACTS.glob("sdk_async*_contract.py"))
    return [(path, SDK / "blocking" / path.name) for path in written] + [
        (path, CONTRACTS / path.name.replace("sdk_async", "sdk_blocking")) for path in suites
    ]


def made(source: Path) -> str:
    text = source.read_text()
    for pattern, replacement in WORDS:
        text = re.sub(pattern, replacement, text)
    docstring_end = text.index('"""', 3) + 4
    note = NOTE.format(source=source.relative_to(ROOT))
    return text[:docstring_end] + "\n" + note + text[docstring_end:]


def formatted(text: str, target: Path) -> str:
    ruff = Path(sys.executable).parent / "ruff"
    for arguments in (["check", "--quiet", "--fix", "--unsafe-fixes", "--select", _RULES], ["format", "--quiet"]):
        argv = [str(ruff), *arguments, "--stdin-filename", str(target), "-"]
        text = subprocess.run(argv, input=text, capture_output=True, text=True, check=False).stdout
    return text


if __name__ == "__main__":
    sys.exit(main())
