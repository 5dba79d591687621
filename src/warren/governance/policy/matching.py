"""Whether a rule applies to a command. `None` means perhaps: a word of the command cannot be known.

The two lists are read differently, each to the safe side. A deny rule is about the program however it is written
(`/usr/bin/curl`, `./curl`), and options may stand between its words (`git -C x push`). An allow rule is about a
name, as the search path finds it, or about the path it gives, and its words must stand where the rule has them.
"""

import posixpath
from fnmatch import fnmatchcase

from warren.governance.policy.shell_words import Word
from warren.model.policy import CommandRule

_USUAL = frozenset(["/bin", "/sbin", "/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin"])


def denies(rule: CommandRule, words: tuple[Word, ...]) -> bool | None:
    name = words[0].text
    if name is None:
        return None
    if not _denies_name(rule.words[0], name):
        return False
    return _denies_arguments(rule.words[1:], words[1:])


def allows(rule: CommandRule, words: tuple[Word, ...]) -> bool | None:
    name = words[0].text
    if name is None:
        return None
    if not _allows_name(rule.words[0], name):
        return False
    for place, wanted in enumerate(rule.words[1:], 1):
        if place >= len(words):
            return False
        text = words[place].text
        if text is None:
            return None
        if not fnmatchcase(text, wanted):
            return False
    return True


def _denies_name(pattern: str, name: str) -> bool:
    base = name.rstrip("/").rpartition("/")[2]
    if "/" not in pattern:
        return fnmatchcase(base, pattern)
    last = pattern.rpartition("/")[2]
    bare = "/" not in name and last.strip("*") != "" and fnmatchcase(name, last)
    return bare or fnmatchcase(_normal(name), _normal(pattern)) or fnmatchcase(name, pattern)


def _allows_name(pattern: str, name: str) -> bool:
    if ".." in name.split("/"):
        return False
    if "/" in pattern:
        return "/" in name and fnmatchcase(_normal(name), _normal(pattern))
    directory, slash, base = name.rpartition("/")
    return (not slash or _normal(directory) in _USUAL) and fnmatchcase(base, pattern)


def _normal(path: str) -> str:
    normal = posixpath.normpath(path)
    return f"/{normal.lstrip('/')}" if normal.startswith("/") else normal


def _denies_arguments(wanted: tuple[str, ...], words: tuple[Word, ...]) -> bool | None:
    """Whether the words can be read as beginning with those wanted, options and their values left out.

    `reached` has how many wanted words are seen, with whether the last word was an option that may take the next
    one as its value.
    """
    if not wanted:
        return True
    reached = {(0, False)}
    for word in words:
        if word.text is None:
            return None
        following: set[tuple[int, bool]] = set()
        for seen, after_option in reached:
            if fnmatchcase(word.text, wanted[seen]):
                if seen + 1 == len(wanted):
                    return True
                following.add((seen + 1, word.text.startswith("-")))
            if word.text.startswith("-"):
                following.add((seen, True))
            elif after_option:
                following.add((seen, False))
        if not following:
            return False
        reached = following
    return False
