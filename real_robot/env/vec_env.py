"""`LiveVecEnv`: real arms as a `VecEnv`, one env an arm."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import cv2
import numpy as np
import torch

from embodied_rl.policy import action_array
from embodied_rl.real_robot.env.arm import ArmBlockedError, ArmFailedError, ArmStep, ArmStoppedError, ArmView, LiveArm
from embodied_rl.types import Array, ChunkResult, EpisodeSpec, Observation
from embodied_rl.vec_env import EnvInfo, SimulatorFailed

_log = logging.getLogger("embodied_rl.live")


@dataclass
class _Attempt:
    """The episode that an arm is in.

    taken: a person has the arm. helped: a person had it. failed: the episode was lost before or between steps.
    stopped: by a person.
    """

    instruction: str
    steps: int = 0
    over: bool = False
    taken: bool = False
    helped: bool = False
    failed: bool = False
    stopped: bool = False


class LiveVecEnv:
    """Arms behind the simulator contract: the evaluator and the trainer see no difference, only the time it takes.

    A chunk is done step by step in the arm's own time. Success pays 1 and ends the episode; at the horizon the arm's
    judge has the last word. An episode in which the arm fails, as by its emergency stop, is reported as failed: it is
    run again, never counted. One whose arm was pushed against something and holds is over, and failed.

    A person who takes an arm over does the rest of the chunk, and of those after it, without a horizon:
    `ChunkResult.human` counts these steps. Where the person lets go the episode ends and the judge says how, or the
    policy goes on. After a person's step nothing is paid.

    Args:
        arms: One an env; they move one after the other.
        info: What they are; `info.max_episode_steps` is the horizon.
        hand_back: Whether the policy goes on where a person lets go.

    Example:
        >>> with closing(LiveVecEnv([arm], info)) as env:
        ...     report = evaluate(env, policy, specs)
    """

    def __init__(self, arms: Sequence[LiveArm], info: EnvInfo, *, hand_back: bool = False) -> None:
        self.num_envs, self.info = len(arms), replace(info, repeatable=False)
        self._hand_back = hand_back
        self._arms = list(arms)
        self._attempts: list[_Attempt | None] = [None] * len(arms)
        self._low, self._high = (np.array(bound, np.float32) for bound in (info.action_low, info.action_high))

    def reset(self, env_ids: Sequence[int], episodes: Sequence[EpisodeSpec]) -> None:
        """See `VecEnv.reset`; waits for the human where one resets the scene."""
        for env_id, episode in zip(env_ids, episodes, strict=True):
            try:
                self._attempts[env_id] = _Attempt(self._arms[env_id].begin(episode))
            except ArmFailedError as error:
                self._attempts[env_id] = _Attempt("", failed=True, stopped=isinstance(error, ArmStoppedError))
                _log.warning("arm %d, episode %d: %s", env_id, episode.episode_id, error)

    def step(self, env_ids: Sequence[int], actions: torch.Tensor) -> ChunkResult:
        """See `VecEnv.step`."""
        chunks = np.clip(action_array(actions), self._low, self._high)
        attempts = [self._open(env_id) for env_id in env_ids]
        result = ChunkResult.zeros(len(attempts), chunks.shape[1])
        for row, (env_id, attempt) in enumerate(zip(env_ids, attempts, strict=True)):
            try:
                self._run_chunk(self._arms[env_id], attempt, chunks[row], result, row)
            except ArmFailedError as error:
                attempt.failed, attempt.stopped = True, attempt.stopped or isinstance(error, ArmStoppedError)
                _log.warning("arm %d: %s", env_id, error)
            if attempt.failed:
                attempt.over = True
                result.failed[row], result.lost[row] = True, attempt.stopped
                result.terminated[row] = result.truncated[row] = result.success[row] = False
                result.reward[row] = 0.0
                result.human[row] = 0
                result.steps_taken[row] = max(int(result.steps_taken[row]), 1)
            if attempt.over:
                self._end(env_id, None if attempt.failed else bool(result.success[row]))
        return result

    def observe(self, env_ids: Sequence[int], out: Observation) -> list[int] | None:
        """See `VecEnv.observe`."""
        return self._observe(env_ids, out, lambda arm: arm.see())

    def glance(self, env_ids: Sequence[int], out: Observation) -> list[int] | None:
        """As `observe`, between the control steps of a chunk: arms that move are not made to wait."""
        return self._observe(env_ids, out, lambda arm: arm.glance())

    def _observe(
        self, env_ids: Sequence[int], out: Observation, look: Callable[[LiveArm], ArmView]
    ) -> list[int] | None:
        lost = []
        for row, env_id in enumerate(env_ids):
            attempt = self._attempts[env_id]
            if attempt is None:
                raise ValueError(f"env {env_id} was never reset")
            try:
                if attempt.failed:
                    raise ArmFailedError("its episode is lost")
                seen = self._checked(look(self._arms[env_id]))
            except ArmFailedError as error:
                _log.warning("arm %d: %s", env_id, error)
                attempt.failed, attempt.stopped = True, attempt.stopped or isinstance(error, ArmStoppedError)
                lost.append(row)
                continue
            out.images[row] = torch.from_numpy(seen.images)
            out.proprio[row] = torch.from_numpy(seen.proprio)
            out.instruction[row] = attempt.instruction
        return lost or None

    def frame(self, env_id: int, camera: str, size: int) -> Array:
        """See `VecEnv.frame`: the camera's newest picture, brought to that size."""
        try:
            seen = self._checked(self._arms[env_id].see())
        except ArmFailedError as error:
            raise SimulatorFailed(str(error)) from error
        image = seen.images[self.info.cameras.index(camera)]
        return np.asarray(cv2.resize(image, (size, size), interpolation=cv2.INTER_AREA))

    def new_observation(self, rows: int) -> Observation:
        """See `VecEnv.new_observation`."""
        return self.info.new_observation(rows)

    def close(self) -> None:
        """Bring all arms to rest and let them go."""
        arms, self._arms = self._arms, []
        for arm in arms:
            arm.close()

    def _open(self, env_id: int) -> _Attempt:
        attempt = self._attempts[env_id]
        if attempt is None or attempt.over:
            raise ValueError(f"env {env_id} holds no running episode: reset it first")
        return attempt

    def _end(self, env_id: int, success: bool | None) -> None:
        """An episode is over, and counts however the arm comes to rest: `begin` tries again where it does not."""
        try:
            self._arms[env_id].end(success)
        except ArmFailedError as error:
            _log.warning("arm %d: %s", env_id, error)

    def _checked(self, seen: ArmView) -> ArmView:
        """What an arm sees; `ArmFailedError` unless it is what `info` says."""
        info = self.info
        shape = (len(info.cameras), *info.image_shape, 3)
        if seen.images.shape != shape or seen.proprio.shape != (info.proprio_dim,):
            found = f"pictures {seen.images.shape} and proprio {seen.proprio.shape}"
            raise ArmFailedError(f"it shows {found}, not {shape} and ({info.proprio_dim},)")
        if not np.isfinite(seen.proprio).all():
            raise ArmFailedError("its proprio is not finite")
        return seen

    def _run_chunk(self, arm: LiveArm, attempt: _Attempt, chunk: Array, result: ChunkResult, row: int) -> None:
        if attempt.failed:
            raise ArmFailedError("its episode is lost")
        done: list[Array] = []
        while len(done) < len(chunk) and not attempt.over:
            result.steps_taken[row] = len(done) + 1  # of a step that fails too
            try:
                step = None if attempt.taken else arm.act(chunk[len(done)])
            except ArmBlockedError as error:
                if not attempt.steps:
                    raise  # there is no frame that could count
                _log.warning("the episode is over, and failed: %s", error)
                attempt.over = True
                result.terminated[row] = True
                break
            if step is None:
                attempt.taken, step = True, arm.follow()
                if step is None:
                    self._let_go(arm, attempt, result, row)
                    break  # what is left of the chunk was decided before
                attempt.helped = True
                result.human[row] += 1
            done.append(step.action)
            self._count(arm, attempt, step, result, row, len(done) - 1)
        result.steps_taken[row] = len(done)
        if result.human[row]:
            if result.executed is None:
                result.executed = torch.zeros((*result.reward.shape, self.info.action_dim))
            result.executed[row, : len(done)] = torch.from_numpy(np.stack(done))

    def _count(self, arm: LiveArm, attempt: _Attempt, step: ArmStep, result: ChunkResult, row: int, place: int) -> None:
        """One more step of the episode, at `place` in its chunk: whether it is over now, and what that pays."""
        attempt.steps += 1
        at_end = attempt.steps >= self.info.max_episode_steps and not attempt.taken
        success = step.success or (at_end and self.info.has_success and arm.judge())
        attempt.over = success or at_end
        if success:
            result.success[row] = result.terminated[row] = True
            result.reward[row, place] = float(not attempt.helped)
        elif at_end:
            result.truncated[row] = True

    def _let_go(self, arm: LiveArm, attempt: _Attempt, result: ChunkResult, row: int) -> None:
        """The person let go: the policy goes on, also where the person did no whole step, or the episode is over."""
        attempt.taken = False
        goes_on = attempt.steps < self.info.max_episode_steps and (self._hand_back or not attempt.helped)
        if goes_on and arm.resume():
            return
        attempt.over = True
        result.terminated[row] = True
        result.success[row] = self.info.has_success and arm.judge()
