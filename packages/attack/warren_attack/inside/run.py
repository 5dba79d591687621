"""Runs one attack: `python3 -c … MODULE:FUNCTION JSON-ARGUMENTS`. The last line it prints is the result."""

import importlib
import json
import sys

MARK = "warren-attack:"


def say(**values: object) -> None:
    sys.stdout.write(f"\n{MARK}{json.dumps(values)}\n")
    sys.stdout.flush()


def main() -> None:
    module, _, function = sys.argv[1].partition(":")
    attack = getattr(importlib.import_module(f"{__package__}.{module}"), function)
    try:
        verdict, evidence = attack(**json.loads(sys.argv[2]))
    except Exception as exc:
        say(error=f"{type(exc).__name__}: {exc}")
        return
    say(verdict=verdict, evidence=evidence)
