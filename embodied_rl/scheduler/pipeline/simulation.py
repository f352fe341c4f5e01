"""What the workers of a pipelined rollout do with the simulator: step, reset and render an env group."""

from __future__ import annotations

from threading import RLock

from embodied_rl.policy import Policy
from embodied_rl.rollout.chunk import Ends, observe_ends, step_rows
from embodied_rl.rollout.episode import ActiveEpisode, executed_terms, record_step
from embodied_rl.rollout.isolation import IsolatedVecEnv
from embodied_rl.rollout.observation_pool import ObservationPool, StepRecord
from embodied_rl.scheduler.pipeline.cuda_stream import ActStream
from embodied_rl.scheduler.pipeline.env_group import EnvGroup, EnvGroupView, make_step_record
from embodied_rl.types import ChunkResult
from embodied_rl.utils.profiler import Profiler
from embodied_rl.vec_env import VecEnv


class Simulation:
    """Works for one env group a call, in several threads at once; each group is with one of them at a time.

    Args:
        capacity: most envs of a group.
        ends: what is wanted of the observation after an episode's last step.
        stream: where the policy acts.
        lock: guards `pool`; it is not held while the simulator works.
    """

    def __init__(
        self, env: VecEnv, policy: Policy, capacity: int, ends: Ends, profiler: Profiler, stream: ActStream, lock: RLock
    ) -> None:
        self.env = IsolatedVecEnv(env)
        self.pool = ObservationPool(env.new_observation, capacity)
        self._policy = policy
        self._ends = ends
        self._profiler = profiler
        self._stream = stream
        self._lock = lock

    def step(self, env_group: EnvGroup) -> tuple[StepRecord, ChunkResult, EnvGroupView | None]:
        """Carry out a group's decision.

        Returns:
            The rows; what happened; the last observations of truncated episodes, if they are to be valued.
        """
        view, decision = env_group.view, env_group.decision
        assert view is not None
        assert decision is not None
        rows = range(len(view.env_ids))
        self._stream.wait(decision.made, decision.act.actions.device)  # on a GPU the actions are queued, not there
        with self._profiler.span("simulate"):
            result = step_rows(self.env, view.env_ids, view.obs, decision.act.actions)
        mask = executed_terms(result, self._policy.chunk_len, self._policy.terms_per_step)
        record = make_step_record(view, decision, result, mask)
        record_step(view.episodes, rows, record, result, keep=True)
        return record, result, self._render_ends(view, result)

    def reset(self, env_group: EnvGroup) -> None:
        """Begin the episodes that were assigned to a group in its free envs."""
        specs, env_group.assigned = env_group.assigned, []
        if specs:
            env_ids = env_group.free_env_ids()[: len(specs)]
            with self._profiler.span("reset"):
                self.env.reset(env_ids, specs)
            env_group.active |= {env_id: ActiveEpisode(spec) for env_id, spec in zip(env_ids, specs, strict=True)}

    def render(self, env_group: EnvGroup) -> EnvGroupView:
        """What the envs of a group show that hold an episode."""
        env_ids = sorted(env_group.active)  # rows in one order, whichever env was filled last
        with self._lock:
            block, obs = self.pool.take(len(env_ids))
        with self._profiler.span("render"):
            self.env.observe(env_ids, obs)  # where that fails, so does the next step
        episodes = [env_group.active[env_id] for env_id in env_ids]
        return EnvGroupView(env_ids, episodes, block, obs, self._stream.mark(obs.images))

    def _render_ends(self, view: EnvGroupView, result: ChunkResult) -> EnvGroupView | None:
        """Observe ended episodes after their last step, as far as it is asked for; return those that are to be valued.

        Those whose simulator died since become `failed`.
        """
        if not (ended := self._ends.rows(result)):
            return None
        with self._lock:
            block, out = self.pool.take(len(ended))
        with self._profiler.span("render"):
            rows, obs = observe_ends(self.env, view.env_ids, result, ended, out)
        rows, obs = self._ends.keep(view.episodes, result, rows, obs)
        if rows:
            env_ids, episodes = [view.env_ids[row] for row in rows], [view.episodes[row] for row in rows]
            return EnvGroupView(env_ids, episodes, block, obs, self._stream.mark(obs.images))
        with self._lock:
            self.pool.give_back(block)
        return None
