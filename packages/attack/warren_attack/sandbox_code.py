"""The code that is brought into a sandbox (`inside/`), how it is started there, and how its answer is read."""

import io
import json
import zipfile
from pathlib import Path
from typing import Any, Final

from warren_attack.inside.run import MARK
from warren_attack.probe import ProbeResult, ProbeVerdict, undecided

LEAST_PYTHON: Final = (3, 9)
CHECK: Final = "import ctypes, os, sys; print(*sys.version_info[:3], os.getuid())"
"""Prints the version of a python3 that has all that the attacks need, and the user's id."""

_VERDICTS: Final = {
    "contained": ProbeVerdict.CONTAINED,
    "through": ProbeVerdict.GOT_THROUGH,
    "n/a": ProbeVerdict.NOT_APPLICABLE,
}


def packed_code() -> bytes:
    """Returns `inside/` as a zip archive, which Python imports as it is."""
    room = io.BytesIO()
    with zipfile.ZipFile(room, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted((Path(__file__).parent / "inside").glob("*.py")):
            archive.writestr(f"inside/{path.name}", path.read_bytes())
    return room.getvalue()


def attack_argv(archive: str, attack: str, arguments: dict[str, Any]) -> tuple[str, ...]:
    """Returns the command that runs an attack, `module:function`, out of the archive at that path in the sandbox."""
    boot = f"import sys; sys.path.insert(0, {archive!r}); from inside.run import main; main()"
    return "python3", "-B", "-I", "-c", boot, attack, json.dumps(arguments)


def has_python(checked: str) -> bool:
    """Says whether what CHECK printed is a python3 that can run the attacks."""
    words = checked.split()
    return len(words) == 4 and all(map(str.isdecimal, words)) and (int(words[0]), int(words[1])) >= LEAST_PYTHON


def read_outcome(stdout: str, ended: str) -> ProbeResult:
    """Reads the verdict that an attack printed; UNDECIDED if there is none. `ended` says how its process ended."""
    lines = [line for line in stdout.splitlines() if line.startswith(MARK)]
    if not lines:
        return undecided(f"no verdict: {ended}")
    try:
        values = json.loads(lines[-1].removeprefix(MARK))
        if "error" in values:
            return undecided(str(values["error"]))
        return ProbeResult(_VERDICTS[values["verdict"]], str(values["evidence"]))
    except (ValueError, KeyError, TypeError) as exc:
        return undecided(f"a verdict that cannot be read: {exc}")
