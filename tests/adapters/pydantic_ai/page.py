"""Runs the program of the page with a model that calls every tool once."""

import runpy
import sys
from pathlib import Path

path = Path(sys.argv[1])
program = path.read_text()
assert '"anthropic:claude-opus-5-5"' in program
path.write_text(program.replace('"anthropic:claude-opus-5-5"', '"test"'))
runpy.run_path(str(path), run_name="__main__")
