"""Warren's errors as those of Python, which frameworks expect of files. No I/O."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from warren.model.errors import (
    FileExists,
    FileNotFound,
    FileProblem,
    InvalidPath,
    IsDirectory,
    NotADirectory,
    NotFound,
    PermissionDenied,
    RequestTimedOut,
    SandboxLost,
    SessionEnded,
    SessionNotFound,
    WarrenError,
)

GONE: Final = (SandboxLost, SessionEnded, SessionNotFound)
"""The sandbox is no more, nor is what was in it."""


class NoDirectory(NotADirectoryError, FileNotFoundError):
    """A part of the path is a file: some frameworks expect the one error then, some the other."""


_OF_FILES: Final[tuple[tuple[tuple[type[WarrenError], ...], type[OSError]], ...]] = (
    ((FileNotFound, InvalidPath), FileNotFoundError),
    ((NotADirectory,), NoDirectory),
    ((FileExists,), FileExistsError),
    ((IsDirectory,), IsADirectoryError),
    ((PermissionDenied,), PermissionError),
    ((RequestTimedOut,), TimeoutError),
    ((NotFound,), FileNotFoundError),
    ((FileProblem,), OSError),
)


@contextmanager
def file_errors(path: str, gone: Callable[[str], Exception] = ConnectionError) -> Iterator[None]:
    """Raises the errors of Warren as those of Python with the file's name, and `gone` when there is no sandbox."""
    try:
        yield
    except GONE as exc:
        raise gone(str(exc)) from exc
    except WarrenError as exc:
        for ours, theirs in _OF_FILES:
            if isinstance(exc, ours):
                raise theirs(f"{path}: {exc}") from exc
        raise
