"""Ceilings and presets of the network: what the operator lets sessions open.

There is a ceiling for everybody and one for each tenant; a session's rules may name only what both contain. Each
connection of a sandbox is checked once more, against what is denied to all and against addresses that are not public.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from warren.model.errors import Forbidden, InvalidRequest
from warren.model.network import MAX_RULES, PRESETS, NetworkRules, parse_rule

EVERYTHING: Final = "internet"
NOTHING: Final = "none"


@dataclass(frozen=True, slots=True)
class Ceiling:
    """`texts` are rules and names of presets. A single `internet` allows everything, a single `none` nothing. Without
    texts there is no ceiling."""

    texts: tuple[str, ...] = ()

    @classmethod
    def read(cls, texts: Any) -> "Ceiling":
        """Reads a ceiling from JSON or YAML. Raises InvalidRequest."""
        if isinstance(texts, str) or not isinstance(texts, Sequence) or not all(isinstance(one, str) for one in texts):
            raise InvalidRequest("what may be opened must be a list of rules", remedy=f"or [{NOTHING!r}] for nothing")
        if len(texts) > MAX_RULES:
            raise InvalidRequest(f"there are {len(texts)} rules, at most {MAX_RULES} are taken")
        chosen = tuple(dict.fromkeys(texts))
        if chosen in ((EVERYTHING,), (NOTHING,)):
            return cls(chosen)
        if EVERYTHING in chosen or NOTHING in chosen:
            raise InvalidRequest(
                f"{EVERYTHING} and {NOTHING} each stand alone", remedy="leave out either it or the rules"
            )
        return cls(tuple(text if text in PRESETS else str(parse_rule(text)) for text in chosen))

    def check(self, rules: NetworkRules, presets: "Presets", whose: str, remedy: str) -> None:
        """Raises Forbidden if the rules open more than the ceiling. `whose` names its owner in the error's text."""
        if not rules.is_open or self.texts in ((), (EVERYTHING,)):
            return
        shown = ", ".join(self.texts[:8]) + (" …" if len(self.texts) > 8 else "")
        if self.texts == (NOTHING,):
            raise Forbidden(f"{whose} lets no sandbox have a network", remedy=remedy)
        if rules.internet:
            raise Forbidden(f"{whose} does not allow internet, only: {shown}", remedy=remedy)
        own = [parse_rule(text) for text in presets.expanded(self.texts)]
        for text in rules.allow:
            if text in self.texts:
                continue
            if not all(any(rule.contains(parse_rule(one)) for rule in own) for one in presets.expanded((text,))):
                raise Forbidden(f"{whose} does not allow {text!r}, only: {shown}", remedy=remedy)


NO_CEILING: Final = Ceiling()


@dataclass(frozen=True, slots=True)
class Preset:
    """The rules that a preset's name stands for, and the variables that tell programs to use the hosts it opens."""

    allow: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Presets:
    """`known`: the presets that can be used on this machine. `problems`: why each of the others cannot."""

    known: Mapping[str, Preset] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)

    def of(self, name: str) -> Preset:
        """Returns the preset. Raises InvalidRequest if it cannot be used on this machine."""
        if (preset := self.known.get(name)) is None:
            why = self.problems.get(name) or "nothing says what it stands for"
            raise InvalidRequest(
                f"the preset {name} cannot be used on this server: {why}",
                remedy="name the hosts yourself; the operator can describe the preset in the file egress_presets",
            )
        return preset

    def expanded(self, texts: Sequence[str]) -> tuple[str, ...]:
        """Returns the rules, with the name of each preset replaced by its rules."""
        found = (self.of(text).allow if text in PRESETS else (text,) for text in texts)
        return tuple(dict.fromkeys(rule for rules in found for rule in rules))

    def env(self, texts: Sequence[str]) -> dict[str, str]:
        return {name: value for text in texts if text in PRESETS for name, value in self.of(text).env.items()}


NO_PRESETS: Final = Presets()
