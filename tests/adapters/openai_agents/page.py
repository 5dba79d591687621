"""Runs the agent of the page with a model that looks into the file."""

import asyncio
import runpy
import sys

from script import Script

program = runpy.run_path(sys.argv[1])
program["agent"].model = Script(("exec_command", {"cmd": "wc -w notes.txt"}))
assert "4 notes.txt" in asyncio.run(program["main"]())
