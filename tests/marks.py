"""Marks for parameters: `make test` runs a test with one value, `make test-all` with all."""

from collections.abc import Iterable
from typing import Any

import pytest
from _pytest.mark import ParameterSet


def first_of(values: Iterable[Any]) -> list[Any]:
    """Returns the values, all but the first marked as extended. A value for several arguments is a tuple."""
    first, *others = values
    return [first, *map(extended, others)]


def extended(value: Any) -> ParameterSet:
    if isinstance(value, ParameterSet):
        return pytest.param(*value.values, id=value.id, marks=[*value.marks, pytest.mark.extended])
    return pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.extended)
