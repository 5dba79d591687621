"""Fetches the files that a lock names into a folder, a few packages at a time, and says how far it is.

    python scripts/fetch_wheels.py requirements.lock build/wheels

Files that are there and have a hash of the lock are not fetched again: neither after an interruption, nor for another
environment. Ends with 3 if the package index gives files with other hashes, and with 1 if it lacks some. quickstart.sh
installs from the folder.
"""

import hashlib
import subprocess
import sys
import tempfile
from pathlib import Path

AT_ONCE = 5
OTHER_HASHES = 3
_PIP = ("-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--require-hashes", "--no-deps")


def main(lock: Path, folder: Path) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    entries = read_lock(lock.read_text())
    there = {hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir() if path.is_file()}
    missing = [entry for entry in entries if not any(f"sha256:{digest}" in entry for digest in there)]
    for start in range(0, len(missing), AT_ONCE):
        part = missing[start : start + AT_ONCE]
        names = ", ".join(entry.partition("==")[0] for entry in part)
        done = len(entries) - len(missing) + start
        sys.stdout.write(f"      {done} of {len(entries)} packages are here; next: {names}\n")
        sys.stdout.flush()
        if code := fetch(part, folder):
            return code
    return 0


def read_lock(text: str) -> list[str]:
    """Returns the entries of a lock, each as one line."""
    lines = text.replace("\\\n", " ").splitlines()
    return [line for line in lines if line.strip() and not line.startswith("#")]


def fetch(entries: list[str], folder: Path) -> int:
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(entries))
        file.flush()
        argv = [sys.executable, *_PIP, "--dest", str(folder), "--requirement", file.name]
        done = subprocess.run(argv, stderr=subprocess.PIPE, text=True)
    if done.returncode == 0:
        return 0
    sys.stderr.write(done.stderr)
    return OTHER_HASHES if "DO NOT MATCH THE HASHES" in done.stderr else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
