"""What somebody may have meant who wrote a name that there is not."""

from collections.abc import Iterable


def suggest(given: object, known: Iterable[str]) -> str:
    """The beginning of a remedy, such as "did you mean X? "; nothing if no known name is spelled much like this one."""
    import difflib  # clients load this module with the model, and hardly ever need it

    by_folded = {name.casefold(): name for name in known}
    close = difflib.get_close_matches(str(given)[:64].casefold(), by_folded, n=1, cutoff=0.8)
    return f"did you mean {by_folded[close[0]]}? " if close else ""
