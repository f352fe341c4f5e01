"""Train in a simulator of your own: a point in a square must reach the red corner.

python examples/custom_simulator.py --iterations 20 --output runs/custom_simulator
"""

import argparse
from collections.abc import Sequence

import numpy as np
import torch
from custom_policy import GaussianPolicy

import embodied_rl as erl
from embodied_rl.rng import philox
from embodied_rl.types import Array, ChunkResult, EpisodeSpec, Observation
from embodied_rl.vec_env import EnvInfo

SIZE, HORIZON = 8, 16


class PointEnv:
    """N points; an action moves a point by up to 0.25 in x and y, and the goal is one of the four corners."""

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        # Which initial states training draws from, and which are evaluated. They must not overlap.
        self.train_states = {"point/reach": range(64)}
        self.heldout_states = {"point/reach": range(64, 96)}
        self.info = EnvInfo(
            backend="numpy",
            suite="point",
            simulator="point 1",
            renderer="numpy",
            cameras=("top",),
            image_shape=(SIZE, SIZE),
            proprio_dim=2,
            action_dim=2,
            action_low=(-1.0, -1.0),
            action_high=(1.0, 1.0),
            control_hz=10.0,
            max_episode_steps=HORIZON,
        )
        self._position = np.zeros((num_envs, 2), np.float32)
        self._goal = np.zeros((num_envs, 2), np.float32)
        self._steps = np.zeros(num_envs, np.int32)

    def reset(self, env_ids: Sequence[int], episodes: Sequence[EpisodeSpec]) -> None:
        """Put each episode into its environment. All that is random comes from the episode, not from `env_ids`."""
        for env_id, episode in zip(env_ids, episodes, strict=True):
            random = philox(7, episode.init_state)
            self._position[env_id] = random.uniform(-0.3, 0.3, 2)
            self._goal[env_id] = random.choice([-0.75, 0.75], 2)
            self._steps[env_id] = 0

    def step(self, env_ids: Sequence[int], actions: torch.Tensor) -> ChunkResult:
        """Run a chunk of control steps, actions [N, K, 2] in [-1, 1]; it ends early where its episode ends."""
        ids, moves = np.asarray(env_ids), actions.numpy().clip(-1, 1)
        count, chunk = moves.shape[:2]
        reward, success = np.zeros((count, chunk), np.float32), np.zeros(count, bool)
        taken, failed = np.zeros(count, np.int32), np.zeros(count, bool)
        for k in range(chunk):
            running = ~success & (self._steps[ids] < HORIZON)
            moved = ids[running]
            self._position[moved] = (self._position[moved] + 0.25 * moves[running, k]).clip(-1, 1)
            self._steps[moved] += 1
            taken += running
            success |= running & (np.abs(self._position[ids] - self._goal[ids]).max(axis=1) < 0.3)
            reward[:, k] = running & success
        truncated = ~success & (self._steps[ids] >= HORIZON)  # out of time; `terminated` means that the task is over
        return ChunkResult.from_numpy(
            reward=reward,
            terminated=success.copy(),
            truncated=truncated,
            success=success,
            steps_taken=taken,
            failed=failed,
        )

    def observe(self, env_ids: Sequence[int], out: Observation) -> None:
        """Fill row i of `out` for `env_ids[i]`. Render here and not in `step`: a frame is drawn where one is read."""
        for row, env_id in enumerate(env_ids):
            out.images[row, 0] = torch.from_numpy(self.frame(env_id, "top", SIZE))
            out.proprio[row] = torch.from_numpy(self._position[env_id])
            out.instruction[row] = "reach the red corner"

    def frame(self, env_id: int, camera: str, size: int) -> Array:
        """A picture for videos, at any size: uint8 [size, size, 3]."""
        image = np.zeros((size, size, 3), np.uint8)
        for where, channel in ((self._goal[env_id], 0), (self._position[env_id], 1)):
            column, row = np.minimum((where + 1) / 2 * size, size - 1).astype(int)
            image[row, column, channel] = 255
        return image

    def new_observation(self, rows: int) -> Observation:
        """Memory for `rows` observations."""
        return self.info.new_observation(rows)

    def close(self) -> None:
        """Nothing to free."""


erl.register_env("point", PointEnv)  # embodied-rl train point, with --import custom_simulator


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--output", default="runs/custom_simulator")
    args = parser.parse_args()
    torch.manual_seed(0)
    env = PointEnv(32)
    outcome = erl.train(
        "tabletop_openvla_ppo",
        iterations=args.iterations,
        output=args.output,
        env=env,
        policy=GaussianPolicy(env.info, chunk_len=4),
        algorithm={"critic_warmup_iterations": 0, "epochs": 4},
        learner={"lr": 3e-3, "lr_warmup_updates": 0, "lr_decay_updates": 0, "average_updates": 0},
        evaluation={"states_per_task": 32, "every": 0},
        videos=1,
    )
    print(f"success before {outcome.before.overall.rate:.0%}, after {outcome.after.overall.rate:.0%}")


if __name__ == "__main__":
    main()
