"""Judges a command by a policy. Pure: it runs nothing and looks nothing up, so the same question has the same verdict.

The rules apply to every command that the line visibly runs, also to those that other commands start. What cannot be
seen has a verdict of its own. This is a guard rail, not a wall: which program a name stands for, and what an allowed
program does, is for the sandbox to contain.
"""

from dataclasses import dataclass

from warren.governance.policy.expand import expand
from warren.governance.policy.matching import allows, denies
from warren.governance.policy.parse import (
    LONGEST_TEXT,
    Doubt,
    Evaluation,
    FoundCommand,
    Script,
    has_code_in_brackets,
    is_code_variable,
    is_lookup_variable,
    parse,
)
from warren.governance.policy.shell_words import Word
from warren.model.command_output import output_of
from warren.model.operations import Command, ExecResult, Reason
from warren.model.policy import Policy, PolicyMode

NOT_ALLOWED = "not on the allow list"
UNKNOWN = "cannot be known"
REFUSED_EXIT_CODE = 126
_DEEPEST = 12
_MAX_STEPS = 20_000
_MAX_NESTED = 48 * 1024  # characters for shells within shells
_MAX_NAMES = 200
# They start nothing that is not judged itself, so an allow list need not name them.
_FREE = frozenset({
    ":", "[", "[[", "alias", "break", "builtin", "cd", "command", "continue", "declare", "dirs", "echo", "env", "eval",
    "exec", "exit", "export", "false", "getopts", "hash", "let", "local", "mapfile", "nice", "nohup", "popd", "printf",
    "pushd", "pwd", "read", "readarray", "readonly", "return", "set", "setsid", "shift", "shopt", "stdbuf", "test",
    "time", "timeout", "times", "trap", "true", "type", "typeset", "ulimit", "umask", "unset", "wait",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class PolicyVerdict:
    """`rule` is empty if nothing speaks against the command; in audit mode it may be set and `allowed` still true.

    `words` is a sentence for people and models, `found` names the commands for the log.
    """

    allowed: bool
    rule: str = ""
    words: str = ""
    found: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Objection:
    rule: str
    words: str
    weight: int  # the lightest is told: denied, not allowed, not known


def judge(policy: Policy, command: Command) -> PolicyVerdict:
    """Judges a command. Never raises, whatever the command is."""
    if policy.mode is PolicyMode.OFF:
        return PolicyVerdict(allowed=True)
    items = _find_all(command)
    names = dict.fromkeys(item.name or "?" for item in items if isinstance(item, FoundCommand) and not item.guess)
    found = tuple(names)[:_MAX_NAMES]
    objections = [objection for item in items if (objection := _objection(policy, item))]
    if not objections:
        return PolicyVerdict(True, found=found)
    first = min(objections, key=lambda objection: objection.weight)
    if policy.mode is PolicyMode.AUDIT:
        return PolicyVerdict(True, first.rule, f"would be refused: {first.words}", found)
    return PolicyVerdict(False, first.rule, first.words, found)


def refusal(verdict: PolicyVerdict) -> ExecResult:
    """The result of a command that was not run."""
    said = f"warren: refused by policy: {verdict.words}\n"
    return ExecResult(
        exit_code=REFUSED_EXIT_CODE, written=output_of(stderr=said), reason=Reason.REFUSED, signal=None,
        duration_ms=0.0, cpu_ms=0.0, bytes_total=len(said.encode(errors="replace")), truncated=False,
    )  # fmt: skip


def _find_all(command: Command) -> list[FoundCommand | Doubt]:
    """Finds all visible commands, each followed by what it starts."""
    result: list[FoundCommand | Doubt] = list(_environment(command))
    waiting: list[FoundCommand | Doubt | Script | Evaluation] = [*_first(command)]
    steps = nested = 0
    stored = any(map(has_code_in_brackets, (*command.env.values(), *command.base_env.values(), *command.argv)))
    evaluates = False
    while waiting:
        item = waiting.pop()
        if isinstance(item, Evaluation):
            stored, evaluates = stored or item.stored, evaluates or item.evaluates
            continue
        steps += 1
        nested += len(item.text) if isinstance(item, Script) and item.route else 0
        if steps > _MAX_STEPS or nested > _MAX_NESTED:
            return [*result, Doubt("it has too much text for shells in it", item.place, item.route[:3])]
        if len(item.route) > _DEEPEST:
            result.append(Doubt("commands are nested too deeply in each other", item.place, item.route[:3]))
        elif isinstance(item, Script):
            waiting += reversed(parse(item))
        else:
            result.append(item)
            waiting += reversed(list(expand(item))) if isinstance(item, FoundCommand) else ()
    if stored and evaluates:
        result.append(Doubt("arithmetic may run a substitution that is kept in a variable", _place(command)))
    return result


def _first(command: Command) -> list[FoundCommand | Doubt | Script]:
    if command.shell:
        return [Script(command.shell)]
    words, room = [], LONGEST_TEXT
    for text in command.argv:
        room -= len(text) + 1
        if room >= 0:
            words.append(Word(text))
    place = _place(command)
    found: list[FoundCommand | Doubt | Script] = [FoundCommand(tuple(words), place)] if words else []
    return found if room >= 0 else [*found, Doubt(f"it is longer than {LONGEST_TEXT // 1024} KiB", place)]


def _place(command: Command) -> str:
    return (command.shell or " ".join(command.argv[:30]))[:60].strip().partition("\n")[0]


def _environment(command: Command) -> list[Doubt]:
    doubts = []
    for name in (*command.env, *command.base_env):
        if is_code_variable(name):
            doubts.append(Doubt(f"a shell may run what the variable {name} has in it"))
        elif is_lookup_variable(name):
            doubts.append(Doubt(f"the variable {name} is set, so names may stand for other programs", lookup=True))
    return doubts


def _objection(policy: Policy, item: FoundCommand | Doubt) -> _Objection | None:
    return _to_doubt(policy, item) if isinstance(item, Doubt) else _to_command(policy, item)


def _to_doubt(policy: Policy, doubt: Doubt) -> _Objection | None:
    if not policy.refuses_unknown or (doubt.lookup and not policy.allow):
        return None
    vouched = doubt.found and any(len(rule.words) > 1 and allows(rule, doubt.found.words) for rule in policy.allow)
    return None if vouched else _unknown(doubt.why, doubt.place, doubt.route)


def _unknown(why: str, place: str, route: tuple[str, ...]) -> _Objection:
    where = _where(place, route)
    words = f"what {where} would run cannot be known before it runs: {why}; write the commands out plainly"
    return _Objection(UNKNOWN, words, 2)


def _to_command(policy: Policy, found: FoundCommand) -> _Objection | None:
    perhaps = False
    for rule in policy.deny:
        answer = denies(rule, found.words)
        if answer:
            words = f"{_named(found)} is denied by the rule `{rule.text}`; do without it"
            return _Objection(rule.text, words, 0)
        perhaps = perhaps or (answer is None and found.words[0].text is not None)
    if policy.allow and not found.guess and found.words[0].text is not None:
        answers = [allows(rule, found.words) for rule in policy.allow]
        if not (True in answers or found.name in _FREE or found.function):
            if None not in answers:
                allowed = ", ".join(rule.text for rule in policy.allow[:20])
                words = f"{_named(found)} is not on the allow list; what may be run: {allowed}"
                return _Objection(NOT_ALLOWED, words, 1)
            perhaps = True
    if perhaps and not found.guess and policy.refuses_unknown:
        return _unknown("an argument that a rule is about is known only then", found.place, found.route)
    return None


def _named(found: FoundCommand) -> str:
    return f"`{found.name}` in {_where(found.place, found.route)}"


def _where(place: str, route: tuple[str, ...]) -> str:
    through = f" (through {', '.join(route)})" if route else ""
    return f"`{place}`{through}" if place else f"the command{through}"
