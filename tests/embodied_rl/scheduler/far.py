"""A toy worker for another machine."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from embodied_rl.policy import Policy
from embodied_rl.vec_env import VecEnv
from tests.embodied_rl.scheduler.toys import SlowEnv
from tests.toy import ToyPolicy


@dataclass(frozen=True)
class ToyFactory:
    """Opens worlds whose calls take `seconds`. breaks: as in ToyEnv."""

    slots: int = 4
    seconds: float = 0.0
    breaks: dict[int, int] = field(default_factory=dict)

    def __call__(self) -> tuple[VecEnv, Policy]:
        # other weights than the learner's: they must come from it
        return SlowEnv(self.slots, lambda: time.sleep(self.seconds), dict(self.breaks)), ToyPolicy(seed=9)
