"""Writes the list of the probes that need an installation of Warren; `warren-attack` shows it where there is none."""

import sys
from pathlib import Path

import warren_attack
from warren_attack.elsewhere import LIST
from warren_attack.probe import Group
from warren_attack.probes import PROBES as ANYWHERE
from warren_attack.warren.api.suite import PROBES as API_PROBES
from warren_attack.warren.suite import PROBES, ROOT_PROBES

PATH = Path(warren_attack.__file__).with_name(LIST)


def listed() -> str:
    anywhere, order = {probe.id for probe in ANYWHERE}, list(Group)
    rows = [
        (order.index(probe.group), f"{probe.group}\t{probe.id}\t{probe.tries}\n")
        for probe in (*PROBES, *ROOT_PROBES, *API_PROBES)
        if probe.id not in anywhere
    ]
    return "".join(line for _, line in sorted(rows, key=lambda row: row[0]))


if __name__ == "__main__":
    if "--check" not in sys.argv:
        PATH.write_text(listed())
    elif PATH.read_text() != listed():
        sys.exit(f"{PATH} is not what the probes are: run scripts/list_probes.py")
