"""Which commands may be run: judged as a shell would read them, before anything is run."""

from warren.tenancy.policy.judge import PolicyVerdict, judge, refusal

__all__ = ["PolicyVerdict", "judge", "refusal"]
