"""The one loop that runs episodes: every free slot is refilled at once, all filled slots decide together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch

from embodied_rl.policy import ActMode, Policy
from embodied_rl.rollout.actor import Actor
from embodied_rl.rollout.chunk import observe_ends, open_ends, step_rows
from embodied_rl.rollout.episode import NO_CRITIC, Running, decision_rng, executed_terms
from embodied_rl.rollout.observation_pool import Recording, Round, RowStore
from embodied_rl.rollout.retries import Cause, cause_of
from embodied_rl.types import ChunkResult, EpisodeSpec
from embodied_rl.utils.timers import StageClock
from embodied_rl.vec_env import VecEnv


class Driver:
    """Runs episodes of one policy in one simulator.

    record: keep the rows of finished episodes (else only their results). final_value: ask the policy for the value of
    the observation after a truncated episode's last step. on_round: called before each decision; what it raises ends
    the run. `version`: of the policy, written on each row, where it may change within an episode. It acts on as many
    threads as torch has where it is made.
    """

    def __init__(
        self,
        env: VecEnv,
        policy: Policy,
        clock: StageClock,
        *,
        record: bool,
        final_value: bool = False,
        on_round: Callable[[], None] | None = None,
    ) -> None:
        self.env = env
        self.policy = policy
        self.clock = clock
        self.version: int | None = None
        self.store = RowStore(env.new_observation, env.num_envs)
        self._actor = Actor(policy, env.num_envs, torch.get_num_threads())
        self._record = record
        self._final_value = final_value
        self._on_round = on_round
        self._running: dict[int, Running] = {}
        self._again: list[EpisodeSpec] = []

    def run(
        self,
        source: Callable[[], EpisodeSpec | None],
        reissue: Callable[[EpisodeSpec, Cause], EpisodeSpec | None],
        mode: ActMode,
    ) -> Iterator[Recording]:
        """Yield episodes as they end, until `source` has nothing to give and every slot is empty.

        `source` is asked for an episode whenever a slot is free; None means "not now". `reissue` names the episode to
        run in place of one whose simulator failed, or whose actions are not finite (None: it is not run here).
        """
        self._running, self._again = {}, []  # an interrupted run leaves its episodes behind
        while (ended := self.round(source, reissue, mode)) is not None:
            yield from ended

    def round(
        self,
        source: Callable[[], EpisodeSpec | None],
        reissue: Callable[[EpisodeSpec, Cause], EpisodeSpec | None],
        mode: ActMode,
    ) -> list[Recording] | None:
        """One turn of `run`: refill the slots, decide once for all; the episodes that this ended (None: none runs)."""
        if self._on_round is not None:
            self._on_round()
        self._refill(source)
        if not self._running:
            return None
        slots = sorted(self._running)
        result, round_ = self._decide(slots, mode)
        for row, slot in enumerate(slots):
            self._running[slot].account(result, round_, row, record=self._record)
        values = self._values(slots, result) if self._final_value else {}
        for row in np.flatnonzero(result.failed):
            lost = self._running.pop(slots[row])
            self.store.drop(lost.rows)
            if (spec := reissue(lost.spec, cause_of(round_.act.actions[row]))) is not None:
                self._again.append(spec)
        return self._finish(slots, result, values)

    def _refill(self, source: Callable[[], EpisodeSpec | None]) -> None:
        slots: list[int] = []
        specs: list[EpisodeSpec] = []
        for slot in range(self.env.num_envs):
            if slot in self._running:
                continue
            spec = self._again.pop(0) if self._again else source()
            if spec is None:
                break
            slots.append(slot)
            specs.append(spec)
        if slots:
            with self.clock.stage("reset"):
                self.env.reset(slots, specs)
        self._running |= {slot: Running(spec) for slot, spec in zip(slots, specs, strict=True)}

    def _decide(self, slots: Sequence[int], mode: ActMode) -> tuple[ChunkResult, Round]:
        """Observe, act and step `slots` once; the round starts with every row live."""
        block, obs = self.store.take(len(slots))
        with self.clock.stage("render"):
            self.env.observe(slots, obs)
        episodes = [self._running[slot] for slot in slots]
        with self.clock.stage("act"):
            act = self._actor.act(obs, decision_rng(episodes), mode)
        with self.clock.stage("simulate"):
            result = step_rows(self.env, slots, act.actions, np.arange(len(slots)))
        mask = executed_terms(result.steps_taken, self.policy.chunk_len, self.policy.terms_per_step)
        reward = result.reward.sum(axis=1, dtype=np.float32)
        round_ = Round(block, obs, act, reward, mask, len(slots), self.version)
        if not self._record:
            self.store.give_back(block)
        return result, round_

    def _finish(self, slots: Sequence[int], result: ChunkResult, values: dict[int, float]) -> list[Recording]:
        """Take the ended episodes of this round out of their slots."""
        rows: list[int] = np.flatnonzero((result.terminated | result.truncated) & ~result.failed).tolist()
        return [
            self._running.pop(slots[row]).ended(
                terminated=bool(result.terminated[row]), final_value=values.get(row, 0.0)
            )
            for row in rows
        ]

    def _values(self, slots: Sequence[int], result: ChunkResult) -> dict[int, float]:
        """The critic's value, by row, of what truncated episodes show now; those that show nothing any more failed."""
        if not (ended := open_ends(result)):
            return {}
        block, out = self.store.take(len(ended))
        with self.clock.stage("render"):
            rows, obs = observe_ends(self.env, slots, result, ended, out)
        values: list[float] = []
        if rows:
            with self.clock.stage("act"):
                value = self._actor.act(obs, decision_rng([self._running[slots[row]] for row in rows]), "greedy").value
            if value is None:
                raise RuntimeError(NO_CRITIC)
            values = value.tolist()
        self.store.give_back(block)
        return dict(zip(rows, values, strict=True))
