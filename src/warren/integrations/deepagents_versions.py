"""The differences between deepagents 0.6 and 0.7, and the error codes of deepagents.

Before 0.7 writing did not replace a file, and `glob` returned paths relative to the root, directories among them.
"""

from dataclasses import fields
from typing import Any, Final, TypeVar

from deepagents.backends import protocol

from warren.model.errors import (
    FileNotFound,
    InvalidPath,
    IsDirectory,
    NotADirectory,
    NotFound,
    PermissionDenied,
    WarrenError,
)

T = TypeVar("T")

BEFORE_0_7: Final = not hasattr(protocol, "DeleteResult")


def build_result(kind: type[T], **values: Any) -> T:
    """Builds a result; fields that this version of deepagents does not have are left out."""
    known = {each.name for each in fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: value for name, value in values.items() if name in known})


def transfer_code(exc: WarrenError) -> str:
    """The error of an upload or a download; deepagents has four codes, anything else is text."""
    for kind, code in (
        (FileNotFound, "file_not_found"),
        (PermissionDenied, "permission_denied"),
        (IsDirectory, "is_directory"),
        (InvalidPath | NotADirectory, "invalid_path"),
    ):
        if isinstance(exc, kind):
            return code
    return str(exc)


def search_code(exc: WarrenError) -> str:
    """The error of a listing or a search."""
    if isinstance(exc, FileNotFound):
        return "path_not_found"
    return exc.code if isinstance(exc, NotADirectory | PermissionDenied) else str(exc)


def read_code(exc: WarrenError) -> str:
    """The error of reading or editing a file."""
    if isinstance(exc, IsDirectory):
        return "not_a_file"
    if isinstance(exc, NotADirectory | FileNotFound):
        return "file_not_found"
    return exc.code if isinstance(exc, PermissionDenied | NotFound) else str(exc)
