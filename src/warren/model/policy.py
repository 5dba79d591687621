"""Command policies: lists of rules, and how strictly they are applied.

A rule is a text. Its first word names programs: `curl` by name, `/usr/sbin/*` by path. More words are the arguments
that a command must begin with: `git push`, `pip install`. In every word `*` stands for any characters and `?` for one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

from warren.model.errors import InvalidRequest

MAX_RULES = 1000
LONGEST_RULE = 500
_KEYS = ("mode", "allow", "deny", "unknown")
_SHELL_SIGNS = frozenset("|&;<>()$`\"'\\{}\n\r\t")


class PolicyMode(StrEnum):
    """OFF judges nothing. AUDIT only reports what it would refuse. ENFORCE refuses."""

    OFF = "off"
    AUDIT = "audit"
    ENFORCE = "enforce"


class Unknown(StrEnum):
    """What happens to a command that cannot be known before it runs."""

    REFUSE = "refuse"
    ALLOW = "allow"


@dataclass(frozen=True, slots=True)
class CommandRule:
    text: str

    def __post_init__(self) -> None:
        if not isinstance(self.text, str):
            raise InvalidRequest(f"the rule {self.text!r} is not a text", remedy="put it in quotes")
        if not self.text.strip():
            raise InvalidRequest("a rule is empty", remedy="name a program, such as `curl` or `git push`")
        if len(self.text) > LONGEST_RULE:
            raise InvalidRequest(f"the rule {self.text[:40]!r}… is longer than {LONGEST_RULE} characters")
        if wrong := sorted(_SHELL_SIGNS & set(self.text)):
            raise InvalidRequest(
                f"the rule {self.text!r} has {wrong[0]!r} in it",
                remedy="a rule is plain words, a program and its leading arguments, and no shell syntax",
            )
        if "=" in self.words[0]:
            raise InvalidRequest(
                f"the rule {self.text!r} begins with a variable", remedy="begin with the name of the program"
            )

    @property
    def words(self) -> tuple[str, ...]:
        return tuple(self.text.split())


@dataclass(frozen=True, slots=True)
class Policy:
    """The deny list wins over the allow list. An empty allow list allows whatever is not denied.

    `unknown` applies to commands that cannot be known before they run, if the allow list is empty. With an allow list
    they are always refused.
    """

    mode: PolicyMode = PolicyMode.OFF
    allow: tuple[CommandRule, ...] = ()
    deny: tuple[CommandRule, ...] = ()
    unknown: Unknown = Unknown.REFUSE

    def __post_init__(self) -> None:
        for name, rules in (("allow", self.allow), ("deny", self.deny)):
            if len(rules) > MAX_RULES:
                raise InvalidRequest(f"the {name} list has {len(rules)} rules, at most {MAX_RULES} are taken")
        if self.mode is not PolicyMode.OFF and not self.allow and not self.deny:
            raise InvalidRequest(
                f"the policy's mode is {self.mode}, but it has no rules",
                remedy="give it an allow list or a deny list, or set its mode to off",
            )
        if self.allow and self.unknown is Unknown.ALLOW:
            raise InvalidRequest(
                "a policy with an allow list cannot allow what cannot be known",
                remedy="leave out `unknown`, or use a deny list only",
            )

    @property
    def refuses_unknown(self) -> bool:
        return bool(self.allow) or self.unknown is Unknown.REFUSE

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> "Policy":
        """Reads a policy from YAML or JSON; the mode is `enforce` unless it is given. Raises InvalidRequest."""
        if not isinstance(values, Mapping):
            raise InvalidRequest("a policy must be keys and values", remedy=f"the keys are {', '.join(_KEYS)}")
        for key in values:
            if key not in _KEYS:
                raise InvalidRequest(f"a policy has no key {key!r}", remedy=f"the keys are {', '.join(_KEYS)}")
        return cls(
            mode=_choice(PolicyMode, "mode", values.get("mode", PolicyMode.ENFORCE)),
            allow=_rules("allow", values.get("allow")),
            deny=_rules("deny", values.get("deny")),
            unknown=_choice(Unknown, "unknown", values.get("unknown", Unknown.REFUSE)),
        )

    def as_mapping(self) -> dict[str, Any]:
        return {
            "mode": self.mode.value,
            "allow": [rule.text for rule in self.allow],
            "deny": [rule.text for rule in self.deny],
            "unknown": self.unknown.value,
        }


def _rules(name: str, values: object) -> tuple[CommandRule, ...]:
    if values is None:
        return ()
    if not isinstance(values, list | tuple):
        raise InvalidRequest(f"the {name} list of the policy is {values!r}", remedy="write a list of rules")
    return tuple(CommandRule(value) for value in values)


_Kind = TypeVar("_Kind", bound=StrEnum)


def _choice(kind: type[_Kind], name: str, value: object) -> _Kind:
    if value is False:  # YAML's word for `off`
        value = "off"
    try:
        return kind(value)  # type: ignore[arg-type]
    except ValueError:
        choices = ", ".join(kind)
        raise InvalidRequest(f"the policy's {name} is {value!r}", remedy=f"it must be one of {choices}") from None
