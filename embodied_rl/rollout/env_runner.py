"""The one loop that runs episodes: every free env is refilled at once, all filled envs decide together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from embodied_rl.policy import ActMode, Policy
from embodied_rl.rollout.actor import ParallelActor
from embodied_rl.rollout.chunk import Ends, observe_ends, step_rows
from embodied_rl.rollout.episode import NO_CRITIC, ActiveEpisode, decision_rng, executed_terms, record_step
from embodied_rl.rollout.isolation import IsolatedVecEnv
from embodied_rl.rollout.observation_pool import ObservationPool, StepRecord, Trajectory
from embodied_rl.rollout.retries import FailureCause, cause_of
from embodied_rl.types import ChunkResult, EpisodeSpec
from embodied_rl.utils.profiler import Profiler
from embodied_rl.vec_env import VecEnv


class EnvRunner:
    """Runs episodes of one policy in one simulator.

    record: keep the rows of finished episodes (else only their results). final_value: ask the policy for the value of
    the observation after a truncated episode's last step. final_images: keep the pictures after every episode's last
    step. on_step: called before each decision; what it raises ends the run. `version`: of the policy, written on each
    row, where it may change within an episode. It acts on as many threads as torch has where it is made.
    """

    def __init__(
        self,
        env: VecEnv,
        policy: Policy,
        clock: Profiler,
        *,
        record: bool,
        final_value: bool = False,
        final_images: bool = False,
        on_step: Callable[[], None] | None = None,
    ) -> None:
        self.env = IsolatedVecEnv(env)
        self.policy = policy
        self.clock = clock
        self.version: int | None = None
        self.store = ObservationPool(env.new_observation, env.num_envs)
        self._actor = ParallelActor(policy, env.num_envs, torch.get_num_threads())
        self._record = record
        self._ends = Ends(final_value, final_images)
        self._on_step = on_step
        self._active: dict[int, ActiveEpisode] = {}
        self._retries: list[EpisodeSpec] = []

    def run(
        self,
        source: Callable[[], EpisodeSpec | None],
        requeue: Callable[[EpisodeSpec, FailureCause], EpisodeSpec | None],
        mode: ActMode,
    ) -> Iterator[Trajectory]:
        """Yield episodes as they end, until `source` has nothing to give and every env is empty.

        `source` is asked for an episode whenever an env is free; None means "not now". `requeue` names the episode to
        run in place of one whose simulator failed, or whose actions are not finite (None: it is not run here, or given
        up).
        """
        self._active, self._retries = {}, []  # an interrupted run leaves its episodes behind
        while (ended := self.step(source, requeue, mode)) is not None:
            yield from ended

    def step(
        self,
        source: Callable[[], EpisodeSpec | None],
        requeue: Callable[[EpisodeSpec, FailureCause], EpisodeSpec | None],
        mode: ActMode,
    ) -> list[Trajectory] | None:
        """One turn of `run`: refill the envs, decide once for all; the episodes that this ended (None: none runs)."""
        if self._on_step is not None:
            self._on_step()
        self._refill(source)
        if not self._active:
            return None
        env_ids = sorted(self._active)  # rows in one order, whichever env was filled last
        result, step = self._decide(env_ids, mode)
        episodes = [self._active[env_id] for env_id in env_ids]
        record_step(episodes, range(len(env_ids)), step, result, keep=self._record)
        values = self._see_ends(env_ids, result)
        for row in torch.nonzero(result.failed).flatten().tolist():
            lost = self._active.pop(env_ids[row])
            self.store.release(lost.rows)
            if (spec := requeue(lost.spec, cause_of(step.obs, step.act.actions, result, row))) is not None:
                self._retries.append(spec)
        return self._finish(env_ids, result, values)

    def _refill(self, source: Callable[[], EpisodeSpec | None]) -> None:
        env_ids: list[int] = []
        specs: list[EpisodeSpec] = []
        for env_id in range(self.env.num_envs):
            if env_id in self._active:
                continue
            spec = self._retries.pop(0) if self._retries else source()
            if spec is None:  # not now: another env would hear the same
                break
            env_ids.append(env_id)
            specs.append(spec)
        if env_ids:
            with self.clock.span("reset"):
                self.env.reset(env_ids, specs)
        self._active |= {env_id: ActiveEpisode(spec) for env_id, spec in zip(env_ids, specs, strict=True)}

    def _decide(self, env_ids: Sequence[int], mode: ActMode) -> tuple[ChunkResult, StepRecord]:
        """Observe, act and step `envs` once; the round starts with every row live."""
        block, obs = self.store.take(len(env_ids))
        with self.clock.span("render"):
            self.env.observe(env_ids, obs)
        episodes = [self._active[env_id] for env_id in env_ids]
        with self.clock.span("act"):
            act = self._actor.act(obs, decision_rng(episodes), mode)
        with self.clock.span("simulate"):
            result = step_rows(self.env, env_ids, obs, act.actions)
        mask = executed_terms(result, self.policy.chunk_len, self.policy.terms_per_step)
        step = StepRecord(block, obs, act, result.reward.sum(dim=1), mask, len(env_ids), self.version)
        if not self._record:
            self.store.give_back(block)
        return result, step

    def _finish(self, env_ids: Sequence[int], result: ChunkResult, values: dict[int, float]) -> list[Trajectory]:
        """Take the ended episodes of this round out of their envs."""
        rows = torch.nonzero((result.terminated | result.truncated) & ~result.failed).flatten().tolist()
        return [
            self._active.pop(env_ids[row]).ended(
                terminated=bool(result.terminated[row]), final_value=values.get(row, 0.0)
            )
            for row in rows
        ]

    def _see_ends(self, env_ids: Sequence[int], result: ChunkResult) -> dict[int, float]:
        """Observe ended episodes as far as it is asked for; those that show nothing any more failed.

        Returns:
            The critic's value of truncated episodes, by row.
        """
        if not (ended := self._ends.rows(result)):
            return {}
        block, out = self.store.take(len(ended))
        with self.clock.span("render"):
            rows, obs = observe_ends(self.env, env_ids, result, ended, out)
        rows, obs = self._ends.keep([self._active[env_id] for env_id in env_ids], result, rows, obs)
        values: list[float] = []
        if rows:
            with self.clock.span("act"):
                value = self._actor.act(obs, decision_rng([self._active[env_ids[row]] for row in rows]), "greedy").value
            if value is None:
                raise RuntimeError(NO_CRITIC)
            values = value.tolist()
        self.store.give_back(block)
        return dict(zip(rows, values, strict=True))
