"""What is found in a command line."""

from dataclasses import dataclass

from warren.tenancy.policy.words import Word


@dataclass(frozen=True, slots=True)
class Findings:
    """A command with its words.

    `place` is its part of the line, `route` through which programs it is reached (`bash -c`, `find -exec`).
    `stdin` has the here-documents it reads; it is None where other input may come. `function` says that a
    function of that name was surely defined before, `guess` that these words may well be no command.
    """

    words: tuple[Word, ...]
    place: str = ""
    route: tuple[str, ...] = ()
    stdin: tuple[str, ...] | None = None
    function: bool = False
    guess: bool = False

    @property
    def name(self) -> str:
        return self.words[0].text or ""


@dataclass(frozen=True, slots=True)
class Doubt:
    """Something that cannot be known. `lookup`: only which program a name stands for.

    `found` is the command that cannot be seen through, so that a rule may vouch for it.
    """

    why: str
    place: str = ""
    route: tuple[str, ...] = ()
    lookup: bool = False
    found: Findings | None = None


@dataclass(frozen=True, slots=True)
class Script:
    """Text that a shell will read."""

    text: str
    route: tuple[str, ...] = ()
    place: str = ""
    guess: bool = False
