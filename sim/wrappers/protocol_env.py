"""A simulator run as a protocol says: settle steps after a reset, its pictures, and what counts as the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from embodied_rl.sim.libero.protocol import Protocol
from embodied_rl.types import Array, ChunkResult, EpisodeSpec, Observation
from embodied_rl.vec_env import VecEnv

Prepare = Callable[[Array, Array], None]
"""Fills uint8 [N, V, H, W, 3] of the policy's size from rendered images of another size."""
Sensor = Callable[[EpisodeSpec, int, Array], None]
"""Degrades the rendered images of one env in place, uint8 [V, H, W, 3], so many control steps after the settle steps of
the episode."""


class ProtocolEnv:
    """`embodied_rl.vec_env.VecEnv` that runs another one by the rules of an evaluation protocol.

    Args:
        env: goes on after success, as MujocoVecEnv does with stop_at_success=False, and then pays a
            reward in every step in which the goal holds. Its tasks' horizons include the settle steps.
        protocol: says which actions settle a scene after a reset.
        image_size: H = W in pixels of the policy's images.
        cameras: how many of the env's, from the first.
        prepare: makes the policy's images from the rendered ones; None: they are the same.
        run_on: an episode goes on to its horizon after success, so that `at_end` is known. Otherwise it ends at the
            first success, as in the official scripts.
        translate: from an episode to what `env` is reset to, where its tasks go by other names.
        sensor: what the cameras do to what the policy sees; people see frames without it.

    Example:
        >>> env = ProtocolEnv(libero_env, protocol("openvla-oft"), image_size=224, cameras=2, prepare=prepare)
    """

    def __init__(
        self,
        env: VecEnv,
        protocol: Protocol,
        *,
        image_size: int,
        cameras: int,
        prepare: Prepare | None = None,
        run_on: bool = False,
        translate: Callable[[EpisodeSpec], EpisodeSpec] | None = None,
        sensor: Sensor | None = None,
    ) -> None:
        self.num_envs = env.num_envs
        self._env = env
        self._settle = torch.from_numpy(protocol.settle_actions())
        self.info = replace(
            env.info,
            image_shape=(image_size, image_size),
            cameras=env.info.cameras[:cameras],
            max_episode_steps=env.info.max_episode_steps - len(self._settle),
        )
        self._prepare = prepare
        self._run_on = run_on
        self._translate = translate or (lambda spec: spec)
        self._sensor = sensor
        self._episodes: dict[int, EpisodeSpec] = {}
        """By env id."""
        self._steps: dict[int, int] = {}
        """Control steps since the settle steps, by env id."""
        self._won: set[int] = set()
        """Env ids whose episode has succeeded."""
        self._broken: set[int] = set()
        """Env ids whose simulator failed while it settled; the next step says so."""
        self._at_end: dict[int, bool] = {}

    @property
    def simulator(self) -> VecEnv:
        """The env that is run."""
        return self._env

    def reset(self, env_ids: Sequence[int], episodes: Sequence[EpisodeSpec]) -> None:
        """Put `episodes[i]` into `env_ids[i]` and run the settle steps."""
        self._env.reset(env_ids, [self._translate(spec) for spec in episodes])
        self._won.difference_update(env_ids)
        self._broken.difference_update(env_ids)
        self._episodes |= dict(zip(env_ids, episodes, strict=True))
        self._steps |= dict.fromkeys(env_ids, 0)
        if not len(self._settle):
            return
        result = self._env.step(env_ids, self._settle.expand(len(env_ids), -1, -1))
        self._broken |= {env_id for env_id, failed in zip(env_ids, result.failed.tolist(), strict=True) if failed}
        if ((result.terminated | result.truncated) & ~result.failed).any():
            raise RuntimeError(
                "an episode ended while it settled: its simulator must go on after success, and its "
                "task's horizon must include the settle steps"
            )

    def step(self, env_ids: Sequence[int], actions: torch.Tensor) -> ChunkResult:
        """Run up to K control steps in each env; actions float32 [N, K, A]."""
        whole = [row for row, env_id in enumerate(env_ids) if env_id not in self._broken]
        if len(whole) == len(env_ids):
            result = self._env.step(env_ids, actions).to("cpu")
        else:
            result = ChunkResult.zeros(*actions.shape[:2])
            result.failed[:], result.steps_taken[:] = True, 1
            if whole:
                result.put(whole, self._env.step([env_ids[row] for row in whole], actions[whole]).to("cpu"))
        for row in whole:
            self._steps[env_ids[row]] += int(result.steps_taken[row])
            self._judge(env_ids[row], result, row)
        return result.to(self.info.device)

    def at_end(self, episode_id: int) -> bool:
        """Whether the goal held after the last control step of an episode that ran on to its end; ask once for each."""
        return self._at_end.pop(episode_id)

    def observe(self, env_ids: Sequence[int], out: Observation) -> Sequence[int] | None:
        """Fill row i of `out` for `env_ids[i]`; return the rows that could not be."""
        rows = len(env_ids)
        frames = self._env.new_observation(rows)
        lost = self._env.observe(env_ids, frames)
        out.proprio[:rows], out.instruction[:rows] = frames.proprio, frames.instruction
        seen = frames.images[:, : len(self.info.cameras)]
        if self._sensor is not None:
            seen = seen.cpu()
            for row, env_id in enumerate(env_ids):
                self._sensor(self._episodes[env_id], self._steps[env_id], seen[row].numpy())
        if self._prepare is None:
            out.images[:rows] = seen
        else:
            images = out.images[:rows].cpu()  # a copy only where the env is on a GPU: pipelines run on the CPU
            self._prepare(seen.cpu().numpy(), images.numpy())
            out.images[:rows] = images
        return lost

    def new_observation(self, rows: int) -> Observation:
        """Allocate an Observation of `rows` rows."""
        return self.info.new_observation(rows)

    def frame(self, env_id: int, camera: str, size: int) -> Array:
        """What a camera sees in an env, upright, for people: uint8 [size, size, 3]."""
        return self._env.frame(env_id, camera, size)

    def close(self) -> None:
        """Close the simulator."""
        self._env.close()

    def _judge(self, env_id: int, result: ChunkResult, row: int) -> None:
        """Rewrite a row by the rules of the protocol: where it ended, and one reward for its first success."""
        taken = int(result.steps_taken[row])
        held = (result.reward[row, :taken] > 0).tolist()
        first = held.index(True) if True in held else None
        result.reward[row] = 0.0
        if first is not None and env_id not in self._won:
            result.reward[row, first] = 1.0
            self._won.add(env_id)
            if not self._run_on:
                result.steps_taken[row] = first + 1
                result.terminated[row], result.truncated[row] = True, False
        if self._run_on and (result.terminated[row] or result.truncated[row]):
            self._at_end[self._episodes[env_id].episode_id] = (
                first is not None and held[int(result.steps_taken[row]) - 1]
            )
