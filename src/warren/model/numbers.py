"""Reads whole numbers from text that somebody else wrote."""

from typing import Final

_LARGEST: Final = (1 << 63) - 1
_LONGEST: Final = len(str(_LARGEST))  # `int` itself raises ValueError for thousands of digits


def read_digits(text: str | bytes, most: int = _LARGEST) -> int | None:
    """Returns the number that the text spells in ASCII digits; None if it is anything else, or larger than `most`.

    `str.isdigit` alone is no check before `int`: it accepts `²`, which `int` refuses."""
    if len(text) > _LONGEST or not (text.isascii() and text.isdigit()):
        return None
    number = int(text)
    return number if number <= most else None
