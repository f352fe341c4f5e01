"""The pipelined rollout: env groups of envs move between simulator workers and the policy; nobody waits for a whole
round.

A worker takes a env group through step, reset and render without a break; then the env group queues for the policy.
The policy acts on all env groups that wait, in one batch, while workers move the others. Env groups without work are
parked."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np

from embodied_rl.policy import Policy
from embodied_rl.rollout.actor import ParallelActor
from embodied_rl.rollout.chunk import observe_ends, open_ends, step_rows
from embodied_rl.rollout.episode import NO_CRITIC, ActiveEpisode, decision_rng, executed_terms
from embodied_rl.rollout.groups import BatchEnd, Group, GroupQueue
from embodied_rl.rollout.observation_pool import ObservationPool, StepRecord, Trajectory
from embodied_rl.rollout.retries import cause_of
from embodied_rl.scheduler.pipeline.batching import Patience
from embodied_rl.scheduler.pipeline.cuda_stream import ActStream
from embodied_rl.scheduler.pipeline.env_group import (
    Decision,
    EnvGroup,
    EnvGroupView,
    join,
    make_env_groups,
    make_step_record,
    split,
)
from embodied_rl.types import ChunkResult, EpisodeResult
from embodied_rl.utils.profiler import Profiler
from embodied_rl.utils.threads import set_torch_threads, shared_cores
from embodied_rl.vec_env import VecEnv

_POLL_SECONDS = 0.1


class RolloutEngine:
    """Runs the episodes of `stream` with `policy` in `env`, in threads of its own, until it is closed.

    stages: env groups that the envs are cut into; workers: threads that step and render; act_wait: how long (s) the
    policy waits for more env groups than the first; None: as `Patience` says. final_value: as in
    `env_runner.EnvRunner`. threads: for acting, see `share_cores_with`.
    One thread, the owner, calls the methods.
    """

    def __init__(
        self,
        env: VecEnv,
        policy: Policy,
        stream: GroupQueue,
        clock: Profiler,
        *,
        env_groups: int,
        workers: int,
        act_wait: float | None = None,
        final_value: bool = False,
        threads: int = 1,
    ) -> None:
        self.env = env
        self.policy = policy
        self.stream = stream
        self.clock = clock
        self.version = 0
        self._act_wait = act_wait
        self._patience = Patience()
        self._final_value = final_value
        self._env_groups = make_env_groups(env.num_envs, env_groups)
        self.store = ObservationPool(env.new_observation, max(len(env_group.env_ids) for env_group in self._env_groups))
        self._parked = deque(self._env_groups)
        self._queue: list[EnvGroup] = []
        self._finals: list[EnvGroupView] = []
        self._valuing = 0
        self._results: list[EpisodeResult] = []
        self._error: BaseException | None = None
        self._closed = False
        self._loading_weights = False
        self._lock = threading.RLock()
        self._policy_cv = threading.Condition(self._lock)  # the policy has something to do
        self._owner_cv = threading.Condition(self._lock)  # the owner may find something
        self._weights = threading.Lock()
        self._workers = ThreadPoolExecutor(workers, "sim")
        self._actor = ParallelActor(policy, env.num_envs, threads)
        self._stream = ActStream(policy)
        self._server = threading.Thread(target=self._serve, args=(shared_cores(threads),), name="act", daemon=True)
        self._server.start()

    # What the owner calls

    def publish(self, version: int, load_weights: Callable[[], None], *, ess_ratio: float = 1.0) -> None:
        """From now on version `version` acts; `install` puts its weights in place, while nothing acts.

        worth: as for `GroupQueue.publish`.
        """
        with self._lock:
            self._loading_weights = True  # or a busy policy might never let go
        with self._weights:
            load_weights()
            self._stream.weights_loaded()
            self.version = version
        with self._lock:
            self._loading_weights = False
            self.stream.publish(version, ess_ratio)
            self._policy_cv.notify()
            self._wake()

    def wait(
        self, on_episode: Callable[[EpisodeResult], None], check_interrupt: Callable[[], None], *, block: bool = True
    ) -> Group | BatchEnd | None:
        """The next kept group in order, or the end of the batch; None if neither is there and it is not to `block`.

        on_episode hears of every episode that ended meanwhile; poll is called several times a second, and what it
        raises is passed on, as is what went wrong in any thread.
        """
        while True:
            check_interrupt()
            with self._lock:
                self._raise()
                event = self.stream.take()
                results, self._results = self._results, []
                if event is None and not results and block:
                    self._owner_cv.wait(_POLL_SECONDS)
            for result in results:
                on_episode(result)
            if event is not None or not block:
                return event

    def release(self, recordings: Sequence[Trajectory]) -> None:
        """Let the memory of these rows be used again."""
        with self._lock:
            self.store.release([row for recording in recordings for row in recording.steps])

    @contextmanager
    def paused(self, check_interrupt: Callable[[], None]) -> Iterator[None]:
        """No episode begins, those that run come to their end, and then the `with` block has simulator and policy."""
        with self._lock:
            self.stream.paused = True
        try:
            while True:
                check_interrupt()
                with self._lock:
                    self._raise()
                    if self._idle():
                        break
                    self._owner_cv.wait(_POLL_SECONDS)
            yield
        finally:
            with self._lock:
                self.stream.paused = False
                self._wake()

    def sampler_state(self) -> dict[str, Any]:
        """The sampler's state as if no group after the last closed batch had been issued."""
        with self._lock:
            return self.stream.sampler.state_dict(self.stream.next_group)

    def close(self) -> None:
        """Stop the threads; episodes under way are lost."""
        with self._lock:
            self._closed = True
            self._policy_cv.notify_all()
        self._server.join()
        self._actor.close()
        self._workers.shutdown(cancel_futures=True)

    def share_cores_with(self, busy: Callable[[], bool]) -> None:
        """Leave half of the acting threads and cores to others while `busy()`; results are the same."""
        self._actor.share_cores_with(busy)

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def busy(self) -> bool:
        """Whether episodes run."""
        return len(self._parked) < len(self._env_groups)

    def _idle(self) -> bool:
        return not self.busy() and not self._finals and self._valuing == 0

    # Workers

    def _wake(self) -> None:
        """Give parked env groups what there is to run."""
        while self._parked and (spec := self.stream.next_episode()) is not None:
            env_group = self._parked.popleft()
            env_group.assigned = spec
            self._submit(env_group)

    def _submit(self, env_group: EnvGroup) -> None:
        env_group.since = time.perf_counter()
        if not self._closed:
            self._workers.submit(self._advance, env_group)

    def _advance(self, env_group: EnvGroup) -> None:
        """Carry out a env group's decision, fill its envs, render; then it waits for the policy or is parked."""
        self.clock.queued("simulate", time.perf_counter() - env_group.since)
        try:
            if env_group.decision is not None:
                self._step(env_group)
            self._refill(env_group)
            view = self._render(env_group) if env_group.active else None
            with self._lock:
                now = time.perf_counter()
                self._patience.returned(now - env_group.since)
                env_group.view, env_group.decision, env_group.since = view, None, now
                if view is not None:
                    self._queue.append(env_group)
                    self._policy_cv.notify()
                else:
                    self._parked.append(env_group)
                    self._wake()
                    self._owner_cv.notify()
                    self._policy_cv.notify()  # the policy may wait for this env group
        except BaseException as error:  # noqa: BLE001 - the owner raises it
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            self._error = self._error or error
            self._owner_cv.notify()

    def _render(self, env_group: EnvGroup) -> EnvGroupView:
        env_ids = sorted(env_group.active)
        with self._lock:
            block, obs = self.store.take(len(env_ids))
        with self.clock.span("render"):
            self.env.observe(env_ids, obs)  # where that fails, so does the next step
        return EnvGroupView(env_ids, [env_group.active[env_id] for env_id in env_ids], block, obs)

    def _render_ends(self, env_group: EnvGroup, env_ids: list[int], result: ChunkResult) -> EnvGroupView | None:
        """What truncated episodes show now, to be valued; those that show nothing any more failed."""
        if not self._final_value or not (ended := open_ends(result)):
            return None
        with self._lock:
            block, out = self.store.take(len(ended))
        with self.clock.span("render"):
            rows, obs = observe_ends(self.env, env_ids, result, ended, out)
        if rows:
            return EnvGroupView(
                [env_ids[row] for row in rows], [env_group.active[env_ids[row]] for row in rows], block, obs
            )
        with self._lock:
            self.store.give_back(block)
        return None

    def _refill(self, env_group: EnvGroup) -> None:
        with self._lock:
            first = [env_group.assigned] if env_group.assigned is not None else []
            env_group.assigned = None
            free = env_group.free_env_ids()
            specs = first + [spec for _ in free[len(first) :] if (spec := self.stream.next_episode()) is not None]
        if specs:
            env_ids = free[: len(specs)]
            with self.clock.span("reset"):
                self.env.reset(env_ids, specs)
            env_group.active |= {env_id: ActiveEpisode(spec) for env_id, spec in zip(env_ids, specs, strict=True)}

    def _step(self, env_group: EnvGroup) -> None:
        view, decision = env_group.view, env_group.decision
        assert view is not None
        assert decision is not None
        with self._lock:
            wanted = [not self.stream.is_stopped(episode.spec) for episode in view.episodes]
        rows = np.flatnonzero(wanted)
        with self.clock.span("simulate"):
            result = step_rows(self.env, view.env_ids, decision.act.actions, rows)
        mask = executed_terms(result.steps_taken, self.policy.chunk_len, self.policy.terms_per_step)
        round_ = make_step_record(view, decision, result, mask)
        for row in rows:
            view.episodes[row].account(result, round_, int(row), record=True)
        final = self._render_ends(env_group, view.env_ids, result)
        with self._lock:
            self._finish_episodes(
                env_group, round_, result, np.asarray(wanted), set(final.env_ids) if final is not None else set()
            )
            if final is not None:
                self._finals.append(final)
                self._policy_cv.notify()

    def _finish_episodes(
        self, env_group: EnvGroup, round_: StepRecord, result: ChunkResult, wanted: np.ndarray, valued: set[int]
    ) -> None:
        """Take what is over out of the env group: stopped, failed and finished episodes; `valued` envs finish later."""
        assert env_group.view is not None
        over = ~wanted | result.terminated | result.truncated | result.failed
        for row in np.flatnonzero(over):
            env_id = env_group.view.env_ids[row]
            episode = env_group.active.pop(env_id)
            if not wanted[row]:
                self.store.release([*episode.rows, (round_, int(row))])
                self.stream.stop(episode.spec)
            elif result.failed[row]:
                self.store.release(episode.rows)
                self.stream.retry(episode.spec, cause_of(round_.act.actions[row]))
            elif env_id not in valued:
                self._finish(episode.ended(terminated=bool(result.terminated[row])))
        self._owner_cv.notify()

    def _finish(self, recording: Trajectory) -> None:
        self._results.append(recording.result)
        dropped = self.stream.add(recording)
        if dropped:
            self.store.release([row for member in dropped for row in member.steps])
            self._wake()

    # The policy

    def _serve(self, threads: int) -> None:
        set_torch_threads(threads)
        try:
            with self._stream.active():
                self._serve_groups()
        except BaseException as error:  # noqa: BLE001 - the owner raises it
            self._fail(error)

    def _serve_groups(self) -> None:
        while True:
            with self._lock:
                env_groups, finals = self._collect()
            if self._closed:
                return
            if env_groups:
                self._act(env_groups)
            if finals:
                self._value(finals)

    def _collect(self) -> tuple[list[EnvGroup], list[EnvGroupView]]:
        """Wait for work, then for more of it while some is on its way and time is left."""
        while not self._closed and (self._loading_weights or not (self._queue or self._finals)):
            self._policy_cv.wait()
        until = self._deadline()
        while len(self._queue) + len(self._parked) < len(self._env_groups) and not self._closed:
            left = until - time.perf_counter()
            if left <= 0:
                break
            self._policy_cv.wait(left)
            if self._act_wait is None:
                until = min(until, self._deadline())
        env_groups, self._queue = self._queue, []
        finals, self._finals = self._finals, []
        self._valuing = len(finals)
        return env_groups, finals

    def _deadline(self) -> float:
        """When the policy acts at the latest on what waits for it."""
        now = time.perf_counter()
        if self._act_wait is not None:
            return now + self._act_wait
        here = {id(env_group) for env_group in (*self._queue, *self._parked)}
        away = ((len(env_group.active), env_group.since) for env_group in self._env_groups if id(env_group) not in here)
        return self._patience.until(now, sum(len(env_group.active) for env_group in self._queue), away)

    def _act(self, env_groups: list[EnvGroup]) -> None:
        now = time.perf_counter()
        self.clock.queued("act", sum(now - env_group.since for env_group in env_groups))
        views = [env_group.view for env_group in env_groups if env_group.view is not None]
        episodes = [episode for view in views for episode in view.episodes]
        with self._weights, self.clock.span("act"):
            self._stream.wait_for_weights()
            version = self.version
            began = time.perf_counter()
            kept = self._actor.act(join(views), decision_rng(episodes), "sample")
            self._patience.decided(len(episodes), time.perf_counter() - began)
        for env_group, act in zip(env_groups, split(kept, [len(view.env_ids) for view in views]), strict=True):
            env_group.decision = Decision(act, version)
            self._submit(env_group)

    def _value(self, finals: list[EnvGroupView]) -> None:
        """Finish truncated episodes with the critic's value of their last observation."""
        episodes = [episode for view in finals for episode in view.episodes]
        with self._weights, self.clock.span("act"):
            self._stream.wait_for_weights()
            value = self._actor.act(join(finals), decision_rng(episodes), "greedy").value
        if value is None:
            raise RuntimeError(NO_CRITIC)
        with self._lock:
            for episode, final in zip(episodes, value.tolist(), strict=True):
                self._finish(episode.ended(terminated=False, final_value=final))
            for view in finals:
                self.store.give_back(view.block)
            self._valuing = 0
            self._owner_cv.notify()
