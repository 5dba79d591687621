"""Logs a lasting problem once, when it begins or changes, although loops report it every second."""

from warren.kernel.logs import EventLog


class ProblemLog:
    """Each `subject` has at most one problem at a time."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._problems: dict[str, tuple[str, str]] = {}

    def report(self, subject: str, event: str, error: str, exc: BaseException | None = None, **fields: object) -> None:
        """Logs `event`, with the traceback of `exc` if given, unless the subject has the same problem already."""
        if self._problems.get(subject) == (event, error):
            return
        self._problems[subject] = event, error
        if exc is None:
            self._log.warning(event, **fields, error=error)
        else:
            self._log.error(event, **fields, error=error, exc=exc)

    def clear(self, subject: str, event: str, **fields: object) -> None:
        """Logs `event` if the subject had a problem."""
        if self._problems.pop(subject, None) is not None:
            self._log.info(event, **fields)
