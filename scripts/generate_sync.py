"""Generates the blocking client from the async one: `python scripts/generate_sync.py [--check]`.

It makes a file of sdk/blocking from every file of sdk/aio but the transport and the platform, one of
integrations/blocking from every file of integrations/aio, and the contract suite of the blocking client from that of
the async one: it removes `async` and `await`, and the prefix `Async` of names. With --check nothing is written, and the
exit code is 1 if a file is not up to date.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = [ROOT / "src" / "warren" / name for name in ("sdk", "integrations")]
CONTRACTS = ROOT / "tests" / "contract"
HANDWRITTEN = {"__init__.py", "transport.py", "platform.py"}
FIXED_RULES = "C416,F401,I,SIM117,UP028"
NOTE = "# Made from {source} by scripts/generate_sync.py: edit that one.\n"
REPLACEMENTS = [
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
    (r"\bwarren\.(\w+)\.aio\b", r"warren.\1.blocking"),
    (r"`async with`", "`with`"),
    (r"\n *pytestmark = pytest\.mark\.anyio\n", "\n"),
    (r"\bAsync([A-Z]\w*)", r"\1"),
]


def main() -> int:
    check = sys.argv[1:] == ["--check"]
    stale = []
    for source, target in find_pairs():
        text = format_code(translate(source), target)
        if not target.exists() or target.read_text() != text:
            stale.append(target.name)
            if not check:
                target.write_text(text)
    if check and stale:
        sys.stderr.write(f"not up to date: {', '.join(stale)}; run python scripts/generate_sync.py\n")
    return int(check and bool(stale))


def find_pairs() -> list[tuple[Path, Path]]:
    sources = [path for package in PACKAGES for path in sorted((package / "aio").glob("*.py"))]
    suites = sorted(CONTRACTS.glob("sdk_async*_contract.py"))
    return [(path, path.parents[1] / "blocking" / path.name) for path in sources if path.name not in HANDWRITTEN] + [
        (path, CONTRACTS / path.name.replace("sdk_async", "sdk_blocking")) for path in suites
    ]


def translate(source: Path) -> str:
    text = source.read_text()
    for pattern, replacement in REPLACEMENTS:
        text = re.sub(pattern, replacement, text)
    docstring_end = text.index('"""', 3) + 4
    note = NOTE.format(source=source.relative_to(ROOT))
    return text[:docstring_end] + "\n" + note + text[docstring_end:]


def format_code(text: str, target: Path) -> str:
    ruff = Path(sys.executable).parent / "ruff"
    for arguments in (["check", "--quiet", "--fix", "--unsafe-fixes", "--select", FIXED_RULES], ["format", "--quiet"]):
        argv = [str(ruff), *arguments, "--stdin-filename", str(target), "-"]
        text = subprocess.run(argv, input=text, capture_output=True, text=True, check=False).stdout
    return text


if __name__ == "__main__":
    sys.exit(main())
