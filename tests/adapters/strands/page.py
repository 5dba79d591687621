"""Runs the program of the page with a model that looks for the Python."""

import runpy
import sys

import strands.models
from scripted import Scripted

strands.models.BedrockModel = lambda **_: Scripted("sandbox_shell", {"command": "python3 --version"})
runpy.run_path(sys.argv[1], run_name="__main__")
