"""Makes the blocking client from the one for asyncio: `python scripts/generate_sync.py [--check]`.

Every file of sdk/aio but the transport and the flavour becomes one of sdk/blocking: `async` and `await` go, names
lose their `Async`. With --check nothing is written, and the exit code says whether it is all up to date.
"""

import re
import subprocess
import sys
from pathlib import Path

SDK = Path(__file__).parents[1] / "src" / "warren" / "sdk"
BY_HAND = {"__init__.py", "transport.py", "flavour.py"}
NOTE = "# Made from ../aio/{name} by scripts/generate_sync.py: edit that one.\n"
WORDS = [
    (r"\basync (def|with|for)\b", r"\1"),
    (r"\bawait ", ""),
    (r"__aenter__", "__enter__"),
    (r"__aexit__", "__exit__"),
    (r"\basynccontextmanager\b", "contextmanager"),
    (r"\bAbstractAsyncContextManager\b", "AbstractContextManager"),
    (r"\bAsyncIterable\b", "Iterable"),
    (r"\bAsyncIterator\b", "Iterator"),
    (r"\bwarren\.sdk\.aio\b", "warren.sdk.blocking"),
    (r"`async with`", "`with`"),
    (r"\bAsync([A-Z]\w*)", r"\1"),
]


def main() -> int:
    check = sys.argv[1:] == ["--check"]
    stale = []
    for source in sorted((SDK / "aio").glob("*.py")):
        if source.name in BY_HAND:
            continue
        target = SDK / "blocking" / source.name
        text = formatted(made(source))
        if not target.exists() or target.read_text() != text:
            stale.append(target.name)
            if not check:
                target.write_text(text)
    if check and stale:
        sys.stderr.write(f"not up to date: {', '.join(stale)}; run python scripts/generate_sync.py\n")
    return int(check and bool(stale))


def made(source: Path) -> str:
    text = source.read_text()
    for pattern, replacement in WORDS:
        text = re.sub(pattern, replacement, text)
    docstring_end = text.index('"""', 3) + 4
    return text[:docstring_end] + "\n" + NOTE.format(name=source.name) + text[docstring_end:]


def formatted(text: str) -> str:
    ruff = Path(sys.executable).parent / "ruff"
    for arguments in (["check", "--quiet", "--fix", "--select", "I"], ["format", "--quiet"]):
        argv = [str(ruff), *arguments, "--stdin-filename", str(SDK / "blocking" / "made.py"), "-"]
        text = subprocess.run(argv, input=text, capture_output=True, text=True, check=False).stdout
    return text


if __name__ == "__main__":
    sys.exit(main())
