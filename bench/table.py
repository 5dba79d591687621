"""The table that benchmarks print: a line for each figure, with its target and whether it was met."""


class Table:
    def __init__(self) -> None:
        self.missed = 0

    def add(self, what: str, figure: str, target: str = "", met: bool | None = None) -> None:
        verdict = "" if met is None else "yes" if met else "NO"
        self.missed += verdict == "NO"
        print(f"  {what:<66} {figure:>16}  {target:<14} {verdict}", flush=True)
