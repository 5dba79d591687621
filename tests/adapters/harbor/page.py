"""Runs the program of the page with a task that it names, in an image that the server has."""

import runpy
import sys
from pathlib import Path

TASK = Path("hello")
FILES = {
    "instruction.md": "Write hello to /app/hello.txt.\n",
    "task.toml": 'schema_version = "1.4"\n[environment]\ndocker_image = "base"\nworkdir = "/app"\n',
    "environment/note": "",
    "solution/solve.sh": "#!/bin/bash\necho hello > hello.txt\n",
    "tests/test.sh": "#!/bin/bash\ngrep -c hello /app/hello.txt > /logs/verifier/reward.txt\n",
}
for name, text in FILES.items():
    (TASK / name).parent.mkdir(parents=True, exist_ok=True)
    (TASK / name).write_text(text)
found = runpy.run_path(sys.argv[1])
assert found["result"].verifier_result.rewards == {"reward": 1}, found["result"]
