"""Suggests a known name for a misspelled one."""

from collections.abc import Iterable


def suggest(given: object, known: Iterable[str]) -> str:
    """Returns the beginning of a remedy, such as "did you mean X? "; empty if no known name is spelled similarly."""
    import difflib  # imported late: clients load this module, and rarely need it

    by_folded = {name.casefold(): name for name in known}
    close = difflib.get_close_matches(str(given)[:64].casefold(), by_folded, n=1, cutoff=0.8)
    return f"did you mean {by_folded[close[0]]}? " if close else ""
