"""Judges whether a command may run, reading it as a shell would, before anything runs."""

from warren.governance.policy.judge import PolicyVerdict, judge, refusal

__all__ = ["PolicyVerdict", "judge", "refusal"]
