"""The options that both wrappers share."""

import os
from typing import NamedTuple, Optional


class Options(NamedTuple):
    """How messages are decided. Each default can be set by the variable that docs/engine.md names, too."""

    policy: str
    cluster: Optional[str]
    profile_steps: int
    replan_steps: int
    replan_percent: int

    @classmethod
    def complete(cls, policy=None, cluster=None, profile_steps=None, replan_steps=None, replan_percent=None):
        """What the program says, else the environment, else the default."""
        return cls(policy or os.environ.get("MGWFBP_POLICY") or "optimal",
                   cluster or os.environ.get("MGWFBP_CLUSTER"),
                   _count("profile_steps", profile_steps, 5, 1),
                   _count("replan_steps", replan_steps, 100, 1),
                   _count("replan_percent", replan_percent, 3, 0))


def _count(source: str, value, fallback: int, least: int) -> int:
    if value is None:
        source = "MGWFBP_" + source.upper()
        value = os.environ.get(source, fallback)
    try:
        if int(value) >= least:
            return int(value)
    except ValueError:
        pass
    raise ValueError(f"{source}: {value!r} is not a number from {least} on")
