"""Renders the Helm chart of deploy/helm/warren, with Helm's own engine.

    python scripts/render_chart.py            writes the documents of deploy/kubernetes that come from the chart
    python scripts/render_chart.py --check    fails if they are not what the chart renders to, or Helm finds a fault
    python scripts/render_chart.py --batch    reads a list of values (JSON), and writes for each what it renders to

Whoever wants no Helm applies deploy/kubernetes; namespace, Secret and kustomization are written by hand there.
"""

import json
import sys
from pathlib import Path
from typing import Any

from helm_python.chart import Chart, lint
from helm_python.errors import HelmError

ROOT = Path(__file__).parents[1]
CHART = ROOT / "deploy" / "helm" / "warren"
PLAIN = ROOT / "deploy" / "kubernetes"
_HEAD = "# Rendered from deploy/helm/warren by scripts/render_chart.py: change it there.\n"


def main(arguments: list[str]) -> int:
    if arguments == ["--batch"]:
        json.dump([attempt(values) for values in json.load(sys.stdin)], sys.stdout)
        return 0
    return check() if arguments == ["--check"] else write()


def render(values: dict[str, Any]) -> dict[str, str]:
    """Returns the documents by the names of their templates. Raises HelmError, also for values the schema refuses."""
    with Chart.load(CHART) as chart:
        chart.validate_schema(chart.merge_values(values))
        rendered = chart.render(values, name="warren", namespace="warren")
    return {Path(name).name: text.strip() + "\n" for name, text in sorted(rendered.items()) if text.strip()}


def attempt(values: dict[str, Any]) -> dict[str, Any]:
    """Returns `documents`, or an `error`."""
    try:
        return {"documents": render(values)}
    except HelmError as exc:
        return {"error": str(exc)}


def plain() -> dict[Path, str]:
    return {PLAIN / name: _HEAD + text for name, text in render({}).items() if name.endswith(".yaml")}


def write() -> int:
    for path, text in plain().items():
        path.write_text(text)
    return 0


def check() -> int:
    stale = [path for path, text in plain().items() if not path.exists() or path.read_text() != text]
    for path in stale:
        sys.stderr.write(f"{path.relative_to(ROOT)} is not what the chart renders to: run scripts/render_chart.py\n")
    problems = lint(CHART, strict=True, namespace="warren")["errors"]
    sys.stderr.writelines(f"{problem}\n" for problem in problems)
    return 1 if stale or problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
