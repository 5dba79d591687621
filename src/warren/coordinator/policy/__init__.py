"""Which commands may be run: judged as a shell would read them, before anything is run."""

from warren.coordinator.policy.judge import Verdict, judge, refusal

__all__ = ["Verdict", "judge", "refusal"]
