"""Data analysis step by step: an interpreter in the sandbox keeps its variables, and the chart comes back as a file.

warren serve &
python examples/data_analysis.py
"""

import tempfile
from pathlib import Path

from example_run import run_example

from warren import SandboxClient

SALES = "month,amount\n1,100\n2,140\n3,90\n4,160\n"
READ = """
import csv
amounts = [int(row["amount"]) for row in csv.DictReader(open("sales.csv"))]
sum(amounts)
"""
# Where the image has matplotlib, `plt.bar(range(len(amounts)), amounts); plt.show()` does this, and gives a PNG.
DRAW = """
class Chart:
    def _repr_svg_(self):
        bars = (f'<rect x="{40 * i}" y="{160 - n}" width="30" height="{n}"/>' for i, n in enumerate(amounts))
        return f'<svg xmlns="http://www.w3.org/2000/svg" width="160" height="160">{"".join(bars)}</svg>'

Chart()
"""


def main() -> None:
    with SandboxClient() as sandbox:
        sandbox.write_file("sales.csv", SALES)
        print("in all:", sandbox.run_code(READ).text)
        [chart] = sandbox.run_code(DRAW).results
        with tempfile.TemporaryDirectory() as directory:
            path = chart.save(Path(directory) / "sales.svg")
            print(f"a chart of {path.read_text().count('<rect')} months is in {path.name}")


if __name__ == "__main__":
    run_example(main)
