"""Finds what a command starts in its turn: other commands, text for a shell, or something that cannot be known."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

from warren.governance.policy.launchers import OPAQUE, find_launcher, find_started
from warren.governance.policy.parse import Doubt, FoundCommand, Script, is_code_variable, is_lookup_variable
from warren.governance.policy.shell_words import Word

Item = FoundCommand | Doubt | Script
_MAX_GUESSES = 64
_RESERVED: Final = frozenset({
    "!", "{", "}", "[[", "]]", "case", "coproc", "do", "done", "elif", "else", "esac", "fi", "for", "function", "if",
    "in", "select", "then", "until", "while",
})  # fmt: skip
_UNKNOWABLE: Final = frozenset(["bind", "compgen", "complete", "enable", "fc"])
_SHELLS: Final = frozenset(["ash", "bash", "dash", "ksh", "mksh", "rbash", "sh"])
_OTHER_SHELLS: Final = frozenset(["csh", "elvish", "fish", "nu", "pwsh", "rc", "tcsh", "xonsh", "yash", "zsh"])
_SHELL_LONG: Final = frozenset(["--login", "--norc", "--noprofile", "--posix", "--restricted", "--verbose"])
_EXECUTES: Final = frozenset(["-exec", "-execdir", "-ok", "-okdir"])


def expand(found: FoundCommand) -> Iterator[Item]:
    """Yields what `found` starts, one level deep: the caller expands the result again."""
    if found.words[0].text is None:
        yield _doubt(found, "its name is known only when it runs")
        return
    name = found.name.rpartition("/")[2]
    if found.name in _RESERVED:
        yield _doubt(found, f"`{found.name}` stands where a command is expected")
        yield from _command(found, found.words[1:], found.name)
    elif name in _UNKNOWABLE:
        yield _doubt(found, f"`{name}` can change what names stand for")
    elif name in OPAQUE:
        yield from _opaque(found, name)
    elif name in _OTHER_SHELLS:
        yield _doubt(found, f"`{name}` is another shell")
    elif name in _SHELLS:
        yield from _shell(found, name)
    elif name in _SPECIAL:
        yield from _SPECIAL[name](found)
    elif kind := find_launcher(name):
        start = find_started(found.words[1:], kind)
        if start.why:
            yield _doubt(found, start.why)
        yield from _assigned(found, start.assigned)
        yield from _command(found, start.words, name)


def _command(found: FoundCommand, words: tuple[Word, ...], through: str) -> Iterator[Item]:
    if words:
        yield replace(found, words=words, route=(*found.route, through), function=False)


def _assigned(found: FoundCommand, names: tuple[str, ...]) -> Iterator[Item]:
    for name in names:
        if is_code_variable(name):
            yield _doubt(found, f"a shell may run what {name} has in it")
        if is_lookup_variable(name):
            why = f"{name} is changed, so names may stand for other programs"
            yield Doubt(why, found.place, found.route, lookup=True)


def _shell(found: FoundCommand, name: str) -> Iterator[Item]:
    text, stdin, operands, why = _shell_options(found.words[1:])
    if why:
        yield _doubt(found, why)
    if text is None:
        return
    if text and operands and operands[0].text is not None:
        yield Script(operands[0].text, (*found.route, f"{name} -c"), found.place, found.guess)
    elif text:
        yield _doubt(found, f"the text for `{name} -c` is known only when it runs")
    elif operands and not stdin:
        yield _doubt(found, f"`{name}` runs a file", vouch=True)
    elif found.stdin is None:
        yield _doubt(found, f"`{name}` runs what it reads from its input", vouch=True)
    else:
        for script in found.stdin:
            yield Script(script, (*found.route, f"the input of {name}"), found.place, found.guess)


def _shell_options(words: tuple[Word, ...]) -> tuple[bool | None, bool, tuple[Word, ...], str]:
    """Returns whether the shell is given a text (None: it runs nothing), whether it reads its input, its operands, and
    a doubt."""
    text = stdin = False
    place, why = 0, ""
    while place < len(words):
        option = words[place].text
        if option is None:
            why = why or ("" if text and not words[place].many else "an argument is known only when it runs")
            break
        if option in ("--help", "--version"):
            return None, False, (), why
        if option in ("-", "--"):
            place += 1
            break
        if option[:1] not in ("-", "+") or len(option) == 1:
            break
        place += 1
        if option.startswith("--"):
            why = why or ("" if option in _SHELL_LONG else f"the option {option[:40]} is not known here")
            continue
        if option.startswith("-") and "i" in option:
            why = why or "an interactive shell runs what is in its start-up file"
        text, stdin = text or "c" in option[1:], stdin or "s" in option[1:]
        place += option.count("o") + option.count("O")
    return text, stdin, words[place:], why


def _opaque(found: FoundCommand, name: str) -> Iterator[Item]:
    yield _doubt(found, f"what `{name}` starts cannot be told from its arguments", vouch=True)
    if found.guess:
        return
    route = (*found.route, name)
    for place, word in enumerate(found.words[1 : 1 + _MAX_GUESSES], 1):
        yield replace(found, words=found.words[place:], route=route, guess=True, stdin=None)
        if word.text:
            yield Script(word.text, route, found.place, guess=True)


def _find(found: FoundCommand) -> Iterator[Item]:
    words = found.words[1:]
    place = 0
    while place < len(words):
        word = words[place]
        place += 1
        if word.text is None and _may_be_option(word):
            yield _doubt(found, "an argument of `find` may be -exec")
        if word.text not in _EXECUTES:
            continue
        start = place
        while place < len(words) and words[place].text not in (";", "+"):
            place += 1
        inner = tuple(_without(word, "{}") for word in words[start:place])
        yield from _command(found, inner, f"find {word.text}")


def _may_be_option(word: Word) -> bool:
    return word.many and (not word.begins or word.begins.startswith("-"))


def _without(word: Word, placeholder: str) -> Word:
    """Returns a word whose placeholder is filled in later."""
    if word.text is None or placeholder not in word.text:
        return word
    return Word(None, begins=word.text.partition(placeholder)[0])


def _xargs(found: FoundCommand) -> Iterator[Item]:
    kind = find_launcher("xargs")
    start = find_started(found.words[1:], kind) if kind else None
    if start is None or not start.words:
        return
    if start.why:
        yield _doubt(found, start.why)
    own = [word.text or "" for word in found.words[1 : len(found.words) - len(start.words)]]
    following = [*own[1:], ""]
    names = [text[2:] or following[place] for place, text in enumerate(own) if text.startswith("-I")]
    words = start.words
    for name in names:
        words = tuple(_without(word, name) for word in words) if name else words
    rest = () if names else (Word(None, many=True),)
    yield from _command(replace(found, stdin=None), (*words, *rest), "xargs")


def _env(found: FoundCommand) -> Iterator[Item]:
    kind = find_launcher("env")
    start = find_started(found.words[1:], kind) if kind else None
    if start is None:
        return
    if start.why:
        yield _doubt(found, start.why)
    for word in found.words[1 : 1 + _MAX_GUESSES] if start.why else ():
        text = (word.text or "").removeprefix("--split-string=")
        yield Script(text[text.find("S") + 1 :] if text.startswith("-") else text, found.route, found.place, guess=True)
    yield from _assigned(found, start.assigned)
    yield from _command(found, start.words, "env")


def _eval(found: FoundCommand) -> Iterator[Item]:
    words = found.words[2:] if found.words[1:2] == (Word("--"),) else found.words[1:]
    texts = [word.text for word in words if word.text is not None]
    if len(texts) < len(words):
        yield _doubt(found, "the text for `eval` is known only when it runs")
    yield Script(" ".join(texts), (*found.route, "eval"), found.place, found.guess)


def _trap(found: FoundCommand) -> Iterator[Item]:
    words = [word for word in found.words[1:] if word.text != "--"]
    if len(words) > 1 and words[0].text is None:
        yield _doubt(found, "the text for `trap` is known only when it runs")
    elif len(words) > 1 and words[0].text not in ("-", "-l", "-p", ""):
        yield Script(words[0].text or "", (*found.route, "trap"), found.place, found.guess)


def _source(found: FoundCommand) -> Iterator[Item]:
    yield _doubt(found, f"`{found.name}` runs a file", vouch=True)


def _alias(found: FoundCommand) -> Iterator[Item]:
    for word in found.words[1:]:
        _, equals, value = (word.text or word.begins).partition("=")
        if equals or word.text is None:
            yield _doubt(found, "an alias changes what names stand for")
            yield Script(value, (*found.route, "alias"), found.place, found.guess)


def _names_in(found: FoundCommand, words: tuple[Word, ...]) -> Iterator[Item]:
    """Yields doubts about words that name variables, perhaps with a value, or with an option in front (`-vNAME`)."""
    names = []
    for word in words:
        text = word.text if word.text is not None else word.begins
        if word.text is None and "=" not in text:
            yield _doubt(found, f"which variable `{found.name}` sets is known only when it runs")
        name = text.partition("=")[0].removesuffix("+")
        names += [name] if not text.startswith("-") else [name[start:] for start in range(2, len(name))]
    yield from _assigned(found, tuple(names))


def _assigns(valued: str = "") -> Callable[[FoundCommand], Iterator[Item]]:
    """Returns a function that looks at a builtin which sets the variables named by its arguments. `valued` has the
    options whose value is no name."""

    def look(found: FoundCommand) -> Iterator[Item]:
        words, names, place = found.words[1:], [], 0
        while place < len(words):
            text = words[place].text or ""
            names.append(words[place])
            place += 2 if text.startswith("-") and text[-1] in valued else 1
        yield from _names_in(found, tuple(names))

    return look


def _declares(found: FoundCommand) -> Iterator[Item]:
    for word in found.words[1:]:
        if (word.text or "").startswith("-") and "n" in (word.text or ""):
            yield _doubt(found, "a variable that refers to another may change what names stand for")
    yield from _names_in(found, found.words[1:])


def _reads_lines(found: FoundCommand) -> Iterator[Item]:
    yield from _with_option("C")(found)
    yield from _assigns("dnOsuc")(found)


def _getopts(found: FoundCommand) -> Iterator[Item]:
    yield from _names_in(found, found.words[2:3])


def _sets_number(found: FoundCommand) -> Iterator[Item]:
    yield from _assigned(found, tuple((word.text or "").partition("=")[0] for word in found.words[1:]))


def _printf(found: FoundCommand) -> Iterator[Item]:
    """Yields the variable that `printf -v` sets; without -v it sets none."""
    if len(found.words) < 2:
        return
    option = found.words[1]
    text = option.text if option.text is not None else option.begins
    if text.startswith("-v"):
        yield from _names_in(found, found.words[1:3] if text == option.text == "-v" else found.words[1:2])
    elif option.text is None and not text and (option.many or len(found.words) > 3):
        name = found.words[2].text if len(found.words) > 2 else None
        if name is None or is_code_variable(name) or is_lookup_variable(name):
            yield _doubt(found, "its first argument may be -v")


def _set(found: FoundCommand) -> Iterator[Item]:
    for word in found.words[1:]:
        if word.text in ("--", "-") or (word.text and word.text[0] not in "-+" and word.text != "keyword"):
            break
        if word.text == "keyword" or ((word.text or "").startswith("-") and "k" in (word.text or "")):
            yield _doubt(found, "with `set -k` arguments may be variables for the command")
        if word.text is None and (not word.begins or word.begins.startswith("-")):
            yield _doubt(found, "an argument of `set` may be -k")


def _with_option(letter: str) -> Callable[[FoundCommand], Iterator[Item]]:
    def look(found: FoundCommand) -> Iterator[Item]:
        for word in found.words[1:]:
            text = word.text if word.text is not None else word.begins or "-"
            if text.startswith("-") and (letter in text or word.text is None):
                yield _doubt(found, f"`{found.name} -{letter}` changes what is run")

    return look


_SPECIAL: Final[dict[str, Callable[[FoundCommand], Iterator[Item]]]] = {
    ".": _source,
    "alias": _alias,
    "declare": _declares,
    "env": _env,
    "eval": _eval,
    "export": _assigns(),
    "find": _find,
    "getopts": _getopts,
    "hash": _with_option("p"),
    "let": _sets_number,
    "local": _declares,
    "mapfile": _reads_lines,
    "printf": _printf,
    "read": _assigns("dinNptu"),
    "readarray": _reads_lines,
    "readonly": _assigns(),
    "set": _set,
    "source": _source,
    "trap": _trap,
    "typeset": _declares,
    "wait": _sets_number,
    "xargs": _xargs,
}


def _doubt(found: FoundCommand, why: str, vouch: bool = False) -> Doubt:
    return Doubt(why, found.place, found.route, found=found if vouch else None)
