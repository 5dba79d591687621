"""Runs the program of the page."""

import runpy
import sys

runpy.run_path(sys.argv[1], run_name="__main__")
