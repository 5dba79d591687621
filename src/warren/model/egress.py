"""What the operator lets sessions open of the network: a ceiling for everybody, one for each tenant, and presets.

A session's rules may name only what each ceiling contains. What a sandbox reaches is bounded once more, connection by
connection, by what is denied to all and by the addresses that are not public.
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
    """`texts` are rules and presets; `internet` alone stands for everything, `none` alone for nothing. Empty: no
    ceiling."""

    texts: tuple[str, ...] = ()

    @classmethod
    def read(cls, texts: Any) -> "Ceiling":
        """Raises InvalidRequest."""
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
        """Raises Forbidden if the rules open more. `whose` says in the sentence who has set it."""
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
    """The rules that a preset's name stands for, and the variables by which a sandbox's programs use what they open."""

    allow: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Presets:
    """Those that are known on this machine; `problems` says for each of the others why it is not."""

    known: Mapping[str, Preset] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)

    def of(self, name: str) -> Preset:
        """Raises InvalidRequest."""
        if (preset := self.known.get(name)) is None:
            why = self.problems.get(name) or "nothing says what it stands for"
            raise InvalidRequest(
                f"the preset {name} cannot be used on this server: {why}",
                remedy="name the hosts yourself; the operator can describe the preset in the file egress_presets",
            )
        return preset

    def expanded(self, texts: Sequence[str]) -> tuple[str, ...]:
        """The rules, with those of the presets in place of their names."""
        found = (self.of(text).allow if text in PRESETS else (text,) for text in texts)
        return tuple(dict.fromkeys(rule for rules in found for rule in rules))

    def env(self, texts: Sequence[str]) -> dict[str, str]:
        return {name: value for text in texts if text in PRESETS for name, value in self.of(text).env.items()}


NO_PRESETS: Final = Presets()
