"""One environment of MetaWorld: its episode, its numbers, and where its bodies are."""

from __future__ import annotations

import mujoco
import numpy as np

from embodied_rl.sim.metaworld.load import make
from embodied_rl.sim.metaworld.tasks import MetaWorldTask
from embodied_rl.sim.step_reward import StepReward
from embodied_rl.sim.stepping import StepOutcome
from embodied_rl.types import Array

STATE_DIM, PROPRIO_DIM, ACTION_DIM = 39, 4, 4
REWARD_SCALE = 10.0
"""The largest reward of a step."""
_BROKEN = [mujoco.mjtWarning.mjWARN_BADQPOS, mujoco.mjtWarning.mjWARN_BADQVEL, mujoco.mjtWarning.mjWARN_BADQACC]


class World:
    """An environment of `task`, and how far its episode is.

    Example:
        >>> world = World(load_tasks(["reach-v3"])[0])
        >>> world.reset(7, StepReward("success"))
        >>> world.step(np.zeros(4, np.float32)).over
        False
    """

    def __init__(self, task: MetaWorldTask) -> None:
        self.task = task
        self.env = make(task.env_id)
        self.reward = StepReward("success")
        self.full_state = np.zeros(STATE_DIM)
        """MetaWorld's observation: 18 numbers of now, 18 of the step before, the goal; float64 [39]."""
        self.steps, self.live = 0, False

    def reset(self, seed: int, reward: StepReward) -> None:
        """Begin the episode of `seed`, paid by `reward`."""
        self.env.seed(seed)
        self.full_state, _ = self.env.reset()
        self.reward, self.steps, self.live = reward, 0, True

    def step(self, action: Array) -> StepOutcome:
        """One control step with an action float32 [4]: the hand's way in cm / axis, and the gripper (+1 closes)."""
        state, native, _, _, info = self.env.step(action)
        self.steps += 1
        # MuJoCo begins again where it can't go on, and says so by a warning alone
        if any(self.env.data.warning[kind].number for kind in _BROKEN) or not np.isfinite(state).all():
            self.live = False  # and the last sound state is what is seen
            return StepOutcome(0.0, failed=True)
        self.full_state, success = state, bool(info["success"] > 0.5)
        ended = success and self.reward.mode != "native"
        late = self.steps >= self.task.max_episode_steps and not ended
        self.live = not (ended or late)
        paid = self.reward.pay(float(native), success, ended=ended, late=late)
        return StepOutcome(paid, success, ended, late)

    @property
    def proprio(self) -> Array:
        """Position of the hand in metres, and how far the gripper is open (0 to 1): float64 [4]."""
        return self.full_state[:PROPRIO_DIM]

    def poses(self) -> tuple[Array, Array]:
        """World poses of its bodies and then of its sites: float64 [nbody + nsite, 3] and [nbody + nsite, 9]."""
        data = self.env.data
        return np.concatenate([data.xpos, data.site_xpos]), np.concatenate([data.xmat, data.site_xmat])
