"""A toy worker for another machine."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from embodied_rl.errors import UserError
from embodied_rl.policy import Policy
from embodied_rl.vec_env import VecEnv
from tests.embodied_rl.scheduler.toys import SlowEnv
from tests.toy import ToyPolicy


@dataclass(frozen=True)
class ToyFactory:
    """Opens worlds whose calls take `seconds`. breaks, broken: as in `toys.Setup`."""

    env_ids: int = 4
    seconds: float = 0.0
    breaks: dict[int, int] = field(default_factory=dict)
    broken: dict[str, Any] = field(default_factory=dict)

    def __call__(self) -> tuple[VecEnv, Policy]:
        # other weights than the learner's: they must come from it
        env = SlowEnv(self.env_ids, lambda: time.sleep(self.seconds), dict(self.breaks), **self.broken)
        return env, ToyPolicy(seed=9)


@dataclass(frozen=True)
class LostFactory:
    """Finds nothing where it is opened."""

    env_ids: int = 4

    def __call__(self) -> tuple[VecEnv, Policy]:
        raise UserError("no checkpoint at /nowhere: name the folder that train wrote.")


@dataclass(frozen=True)
class DyingFactory:
    """A worker that ends as if it had been killed, whenever it is to open its worlds."""

    env_ids: int = 4

    def __call__(self) -> tuple[VecEnv, Policy]:
        os._exit(1)


@dataclass(frozen=True)
class MortalFactory(ToyFactory):
    """One worker of all that are opened is killed in its first episode: the one that finds the file `alive` first."""

    alive: str = ""

    def __call__(self) -> tuple[VecEnv, Policy]:
        calls = count(1)

        def pause() -> None:
            time.sleep(self.seconds)
            if next(calls) == 4:
                with suppress(FileNotFoundError):
                    os.unlink(self.alive)
                    os.kill(os.getpid(), signal.SIGKILL)

        return SlowEnv(self.env_ids, pause), ToyPolicy(seed=9)
