"""The main peer's loop on our envs, for `pipeline_real`: all begin together and all go on to the horizon.

An env whose task is done is simulated, drawn and asked for further actions until its time is up, and the rows of that
go through forward and backward pass with weight 0. What is learned is the same as everywhere else.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from embodied_rl.algorithms.base import LossOutput, Rows
from embodied_rl.algorithms.config import PPOConfig
from embodied_rl.algorithms.ppo import PPO
from embodied_rl.policy import Policy
from embodied_rl.rollout.actor import ParallelActor
from embodied_rl.rollout.episode import ActiveEpisode, decision_rng, executed_terms, record_step
from embodied_rl.rollout.groups import BatchEnd, Group, GroupStatus
from embodied_rl.rollout.metrics import summarize_rollout
from embodied_rl.rollout.observation_pool import ObservationPool, StepRecord, Trajectory, gather
from embodied_rl.rollout.sampler import EpisodeSampler
from embodied_rl.types import ChunkResult, EpisodeSpec, EvalOutput, RolloutBatch
from embodied_rl.utils.profiler import Profiler
from embodied_rl.vec_env import VecEnv


class _Padded:
    """A policy whose `evaluate` takes rows `index` of `masked` along, and returns what it makes of the others."""

    def __init__(self, policy: Policy, masked: RolloutBatch, index: Tensor) -> None:
        self.terms_per_step = policy.terms_per_step
        self._policy, self._masked, self._index = policy, masked, index

    def evaluate(
        self, images: Tensor, proprio: Tensor, instruction: list[str], replay: dict[str, Tensor]
    ) -> EvalOutput:
        more, index, rows = self._masked, self._index, len(images)
        out = self._policy.evaluate(
            torch.cat([images, more.images[index]]),
            torch.cat([proprio, more.proprio[index]]),
            instruction + [more.instruction[i] for i in index.tolist()],
            {key: torch.cat([tensor, more.replay[key][index]]) for key, tensor in replay.items()},
        )
        assert out.value is not None, "the policy acted with a critic"
        return EvalOutput(out.log_prob[:rows], out.entropy[:rows], out.value[:rows])


class PPOWithMaskedRows(PPO):
    """PPO whose passes also take in rows that count nothing: of `masked`, in proportion to those that count."""

    def __init__(self, config: PPOConfig) -> None:
        super().__init__(config)
        self.masked: RolloutBatch | None = None
        self.taken = 0
        self._share = 0.0
        self._counted = 0
        self._lock = threading.Lock()  # microbatches go side by side

    def next_batch(self, rows: int, masked: RolloutBatch | None) -> None:
        """The rows that count nothing in the next update, which has `rows` rows that count."""
        self.masked, self.taken, self._counted = masked, 0, 0
        self._share = 0.0 if masked is None else len(masked) / rows

    def loss(self, policy: Policy, rows: Rows, iteration: int) -> LossOutput:
        """PPO's, from passes that masked rows share."""
        index = self._take(len(rows.index))
        if self.masked is None or not len(index):
            return super().loss(policy, rows, iteration)
        return super().loss(_Padded(policy, self.masked, index), rows, iteration)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]

    def _take(self, rows: int) -> Tensor:
        with self._lock:
            first = self.taken
            self._counted += rows
            self.taken = round(self._share * self._counted)
            return torch.arange(first, self.taken)


class PeerLoop:
    """`SerialScheduler`'s place. env: does not stop at success, and has as many envs as begin together."""

    def __init__(
        self,
        env: VecEnv,
        policy: Policy,
        sampler: EpisodeSampler,
        algorithm: PPOWithMaskedRows,
        clock: Profiler,
        groups: int,
    ) -> None:
        if algorithm.needs_final_value:
            raise ValueError("this loop does not value the last observation of a truncated episode")
        if algorithm.epochs != 1 or groups * algorithm.group_size % env.num_envs:
            raise ValueError("this loop wants one epoch, and whole waves")
        self._env = env
        self._policy = policy
        self._sampler = sampler
        self._algorithm = algorithm
        self._clock = clock
        self._waves = groups * algorithm.group_size // env.num_envs
        self._store = ObservationPool(env.new_observation, env.num_envs)
        self._actor = ParallelActor(policy, env.num_envs, torch.get_num_threads())

    def batches(self, start: int, stop: int) -> Iterator[RolloutBatch]:
        """As in SerialScheduler; the batch has the rows that count."""
        for version in range(start, stop):
            waves = [self._wave() for _ in range(self._waves)]
            recordings = [recording for found, _ in waves for recording in found]
            masked = [row for _, rows in waves for row in rows]
            with self._clock.span("gather"):
                batch = gather(recordings, version)
                # whose rows these are no longer matters
                rest = gather([Trajectory(recordings[0].result, masked)], version) if masked else None
            self._store.release([*masked, *(row for recording in recordings for row in recording.steps)])
            self._algorithm.next_batch(len(batch), rest)
            groups = [Group(row.result.spec.group, 1, members=[row], status=GroupStatus.ACCEPTED) for row in recordings]
            batch.info = summarize_rollout(BatchEnd(version, groups, len(groups)), requeued=0)
            yield batch

    def _wave(self) -> tuple[list[Trajectory], list[tuple[StepRecord, int]]]:
        """An episode an env, to the horizon: the episodes, and the rows after their success."""
        specs: list[EpisodeSpec] = []
        while len(specs) < self._env.num_envs:
            specs += self._sampler.next_group()
        env_ids = list(range(len(specs)))
        with self._clock.span("reset"):
            self._env.reset(env_ids, specs)
        running = [ActiveEpisode(spec) for spec in specs]
        found: dict[int, Trajectory] = {}
        masked: list[tuple[StepRecord, int]] = []
        while env_ids:
            result, round_ = self._decide(env_ids, running)
            truncated, failed = result.truncated.tolist(), result.failed.tolist()
            episodes = [running[env_id] for env_id in env_ids]
            new = [row for row, env_id in enumerate(env_ids) if env_id not in found]
            if any(failed[row] for row in new):
                raise RuntimeError("a simulation diverged; this loop cannot run an episode again")
            record_step(episodes, new, round_, result, keep=True)
            for row, env_id in enumerate(env_ids):
                if env_id in found:
                    running[env_id].num_decisions += 1  # which the random numbers of the next one depend on
                    masked.append((round_, row))
                    continue
                if result.success[row] or truncated[row]:
                    found[env_id] = running[env_id].ended(terminated=bool(result.success[row]))
            env_ids = [env_id for row, env_id in enumerate(env_ids) if not (truncated[row] or failed[row])]
        for spec in specs:
            self._sampler.finish(spec)
        return [found[env_id] for env_id in range(len(specs))], masked

    def _decide(self, env_ids: Sequence[int], running: Sequence[ActiveEpisode]) -> tuple[ChunkResult, StepRecord]:
        block, obs = self._store.take(len(env_ids))
        with self._clock.span("render"):
            self._env.observe(env_ids, obs)
        with self._clock.span("act"):
            act = self._actor.act(obs, decision_rng([running[env_id] for env_id in env_ids]), "sample")
        with self._clock.span("simulate"):
            result = first_success(self._env.step(env_ids, act.actions))
        mask = executed_terms(result, self._policy.chunk_len, self._policy.terms_per_step)
        return result, StepRecord(block, obs, act, result.reward.sum(dim=1), mask, len(env_ids))

    def publish(self, version: int) -> None:
        """The weights are shared: nothing is copied."""

    def close(self) -> None:
        """Stop the threads that act."""
        self._actor.close()


def first_success(result: ChunkResult) -> ChunkResult:
    """A chunk that went on after success, as if it had stopped there; `truncated` stays, as the env's."""
    done = (result.reward > 0).cumsum(dim=1)
    reward = result.reward.where((done == 1) & (result.reward > 0), 0.0)
    steps = ((done == 0).sum(dim=1) + 1).int().where(result.success, result.steps_taken)
    return ChunkResult(reward, result.success, result.truncated, result.success, steps, result.failed)
