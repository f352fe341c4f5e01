"""The pipelined rollout: while the policy acts for one group of envs, workers step and render the others.

An env group goes round: the policy acts for it, a worker steps it, its finished episodes are counted and its free envs
refilled (`_commit`), the worker resets and renders it, and it waits for the policy again. A group without episodes is
parked.

Under `EngineOptions.in_turn` groups act and commit in a fixed order (`Turns`). So which rows act together, which
episode runs in which env and all results are independent of timing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from embodied_rl.policy import ActMode, Policy
from embodied_rl.rng import DecisionRng
from embodied_rl.rollout.actor import ParallelActor
from embodied_rl.rollout.chunk import Ends
from embodied_rl.rollout.episode import NO_CRITIC, decision_rng
from embodied_rl.rollout.group_queue import GroupQueue
from embodied_rl.rollout.groups import BatchEnd, Group, GroupReport
from embodied_rl.rollout.observation_pool import StepRecord, Trajectory
from embodied_rl.rollout.retries import cause_of
from embodied_rl.scheduler.pipeline.cuda_stream import ActStream
from embodied_rl.scheduler.pipeline.env_group import Decision, EnvGroup, EnvGroupView, make_env_groups, split
from embodied_rl.scheduler.pipeline.options import EngineOptions
from embodied_rl.scheduler.pipeline.simulation import Simulation
from embodied_rl.scheduler.pipeline.turns import Turn, Turns
from embodied_rl.types import ActOutput, ChunkResult, EpisodeResult, concatenate
from embodied_rl.utils.profiler import Profiler
from embodied_rl.utils.threads import CoreBudget, set_torch_threads, shared_cores
from embodied_rl.vec_env import VecEnv

POLL_SECONDS = 0.1


class RolloutEngine:
    """Runs the episodes of `queue` with `policy` in `env`, in threads of its own, until it is closed.

    One thread, the owner, calls the public methods. cores: budget that acting shares with the learner.
    """

    def __init__(
        self,
        env: VecEnv,
        policy: Policy,
        queue: GroupQueue,
        profiler: Profiler,
        options: EngineOptions,
        cores: CoreBudget | None = None,
    ) -> None:
        self.queue = queue
        self.profiler = profiler
        self.version = 0
        self._options = options
        self._cores = cores or CoreBudget()
        self._env_groups = make_env_groups(env.num_envs, options.env_groups)
        self._turns = Turns(options.env_groups, in_turn=options.in_turn)
        self._valuing = False
        self._busy = False
        self._results: list[EpisodeResult] = []
        self._error: BaseException | None = None
        self._closed = False
        self._loading_weights = False
        self._lock = threading.RLock()
        self._policy_cv = threading.Condition(self._lock)  # the policy may have something to do
        self._commit_cv = threading.Condition(self._lock)  # the next env group may commit
        self._owner_cv = threading.Condition(self._lock)  # the owner may find something
        # Apart from `_lock`: it is held for a whole decision, while workers must go on.
        self._weights = threading.Lock()
        self._workers = ThreadPoolExecutor(options.workers, "sim")
        self._actor = ParallelActor(policy, env.num_envs, options.threads, self._cores)
        self._stream = ActStream(policy)
        largest = max(len(env_group.env_ids) for env_group in self._env_groups)
        ends = Ends(options.final_value, options.final_images)
        self._simulation = Simulation(env, policy, largest, ends, profiler, self._stream, self._lock)
        # A daemon: where the owner fails before `close`, the process must still end.
        self._server = threading.Thread(target=self._serve, name="act", daemon=True)
        self._server.start()

    # What the owner calls

    def publish(self, version: int, load_weights: Callable[[], None], *, ess_ratio: float = 1.0) -> None:
        """From now on version `version` acts. `load_weights` puts its weights in place, while nothing acts.

        ess_ratio: as for `GroupQueue.publish`.
        """
        with self._lock:
            self._loading_weights = True  # or a busy policy might never let go
        with self._weights:
            load_weights()
            self._stream.weights_loaded()
            self.version = version
        with self._lock:
            self._loading_weights = False
            self.queue.publish(version, ess_ratio)
            self._policy_cv.notify()
            self._wake()

    def wait(
        self, on_episode: Callable[[EpisodeResult], None], check_interrupt: Callable[[], None], *, block: bool = True
    ) -> Group | BatchEnd | None:
        """The next accepted group in order, or the end of the batch; None where other ranks must be heard before.

        Args:
            on_episode: gets every episode that ended meanwhile.
            check_interrupt: called several times a second while nothing is there; what it raises is passed on, as is an
                error in any thread.
            block: wait; otherwise None also where nothing is there.
        """
        while True:
            with self._lock:
                self._raise()
                event = self.queue.take()
                done = event is not None or not block or self.queue.waits_for_others()
                results, self._results = self._results, []
                if not done and not results:
                    self._owner_cv.wait(POLL_SECONDS)  # not for ever: a signal is heard between two waits
            for result in results:
                on_episode(result)
            if done:
                return event
            # After `take`: over ranks all leave after the same events, and hear of it in `share`.
            check_interrupt()

    def finished_groups(self) -> list[Group]:
        """As `GroupQueue.finished_groups`."""
        with self._lock:
            return self.queue.finished_groups()

    def settle(self, reports: Sequence[GroupReport]) -> None:
        """As `GroupQueue.settle`; begins what may run because of it."""
        with self._lock:
            self.queue.settle(reports)
            self._wake()

    def release(self, trajectories: Sequence[Trajectory]) -> None:
        """Let the memory of these rows be used again."""
        with self._lock:
            self._release(trajectories)

    @contextmanager
    def paused(self, check_interrupt: Callable[[], None]) -> Iterator[None]:
        """No episode begins, those that run come to their end, and then the `with` block has simulator and policy."""
        with self._lock:
            self.queue.paused = True
        try:
            while True:
                check_interrupt()
                with self._lock:
                    self._raise()
                    # Last observations that are being valued are no longer in `_turns`.
                    if not self._busy and not self._valuing:
                        break
                    self._owner_cv.wait(POLL_SECONDS)
            yield
        finally:
            with self._lock:
                self.queue.paused = False
                self._wake()

    def sampler_state(self) -> dict[str, Any]:
        """The sampler's state as if no group after the last closed batch had been issued."""
        with self._lock:
            return self.queue.sampler.state_dict(self.queue.next_group)

    def close(self) -> None:
        """Stop the threads; episodes under way are lost."""
        with self._lock:
            self._closed = True
            self._policy_cv.notify_all()
            self._commit_cv.notify_all()
        self._server.join()  # first: it gives the workers work
        self._actor.close()
        self._workers.shutdown(cancel_futures=True)

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    # Workers

    def _wake(self) -> None:
        """Give parked env groups what there is to run."""
        for env_group in self._env_groups:
            if env_group.parked:
                self._assign(env_group)
                if env_group.assigned:
                    self._line_up(env_group)
                    self._submit(env_group)
        self._note_busy()

    def _assign(self, env_group: EnvGroup) -> None:
        """Episodes for the free envs of a group, as far as there are any."""
        free = env_group.free_env_ids()
        env_group.assigned = [spec for _ in free if (spec := self.queue.next_episode()) is not None]

    def _line_up(self, env_group: EnvGroup) -> None:
        env_group.parked = False
        self._turns.line_up(env_group)

    def _note_busy(self) -> None:
        # While nothing runs here, as between batches on policy, the learner's threads take all cores.
        if self._turns.busy == self._busy:
            return
        self._busy = self._turns.busy
        if self._busy:
            self._cores.begin("rollout")
        else:
            self._cores.end("rollout")
        self._owner_cv.notify()

    def _submit(self, env_group: EnvGroup) -> None:
        env_group.since = time.perf_counter()
        if not self._closed:  # a pool that is shut down raises
            self._workers.submit(self._advance, env_group)

    def _advance(self, env_group: EnvGroup) -> None:
        """Carry out a group's decision, commit what came of it, reset and render; then it waits for the policy."""
        self.profiler.queued("simulate", time.perf_counter() - env_group.since)
        try:
            if env_group.decision is not None:
                record, result, finals = self._simulation.step(env_group)
                with self._lock:
                    if not self._may_commit(env_group):
                        return
                    self._commit(env_group, record, result, finals)
                    if env_group.parked:
                        return
            self._simulation.reset(env_group)
            view = self._simulation.render(env_group)
            with self._lock:
                env_group.view, env_group.since = view, time.perf_counter()
                self._policy_cv.notify()
        except BaseException as error:  # noqa: BLE001 - the owner raises it
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            self._error = self._error or error  # the first: others follow from it
            self._owner_cv.notify()
            self._commit_cv.notify_all()

    def _may_commit(self, env_group: EnvGroup) -> bool:
        """Wait for the group's turn to commit; False if that will never come."""
        while not self._closed and self._error is None:
            if self._turns.may_commit(env_group):
                return True
            self._commit_cv.wait()
        return False

    def _commit(
        self, env_group: EnvGroup, record: StepRecord, result: ChunkResult, finals: EnvGroupView | None
    ) -> None:
        """Count the episodes that are over, give up those of broken groups, refill the envs, line up again."""
        self._turns.commit(env_group)
        self._commit_cv.notify_all()
        assert env_group.view is not None
        valued = set(finals.env_ids) if finals is not None else set()
        over = result.terminated | result.truncated | result.failed
        for row in over.nonzero().flatten().tolist():
            env_id = env_group.view.env_ids[row]
            episode = env_group.active.pop(env_id)
            if result.failed[row]:
                self._simulation.pool.release(episode.rows)
                cause = cause_of(record.obs, record.act.actions, result, row)
                self._release(self.queue.retry(episode.spec, cause))
            elif env_id not in valued:  # the others end in `_value`
                self._finish(episode.ended(terminated=bool(result.terminated[row])))
        for env_id, episode in list(env_group.active.items()):
            # Another episode of its group broke the simulator: what is left of it would count for nothing.
            if self.queue.is_stopped(episode.spec):
                del env_group.active[env_id]
                self._simulation.pool.release(episode.rows)
                self.queue.stop(episode.spec)
        env_group.view, env_group.decision, env_group.parked = None, None, True
        if finals is not None:
            self._turns.line_up(finals)  # before the group: they are ready, and it is still to be rendered
        self._assign(env_group)
        if env_group.active or env_group.assigned:
            self._line_up(env_group)  # without `_submit`: this worker goes on with it
        self._wake()  # what was counted may let others begin: a filtered group is replaced
        self._owner_cv.notify()
        self._policy_cv.notify()

    def _finish(self, trajectory: Trajectory) -> None:
        self._results.append(trajectory.result)  # told by `wait`: callbacks run in the owner's thread alone
        self._release(self.queue.add(trajectory))

    def _release(self, trajectories: Sequence[Trajectory]) -> None:
        self._simulation.pool.release([row for trajectory in trajectories for row in trajectory.steps])

    # The policy

    def _serve(self) -> None:
        set_torch_threads(shared_cores(self._options.threads))  # the other half is the simulator's and the learner's
        try:
            with self._stream.active():
                while turns := self._next_turns():
                    if env_groups := [turn for turn in turns if isinstance(turn, EnvGroup)]:
                        self._act(env_groups)
                    if finals := [turn for turn in turns if isinstance(turn, EnvGroupView)]:
                        self._value(finals)
        except BaseException as error:  # noqa: BLE001 - the owner raises it
            self._fail(error)

    def _next_turns(self) -> list[Turn]:
        """Wait for something to do; nothing once the engine is closed."""
        with self._lock:
            while not self._closed and (self._loading_weights or not self._turns.ready()):
                self._policy_cv.wait()
            if self._closed:
                return []
            turns = self._turns.take()
            self._valuing = any(isinstance(turn, EnvGroupView) for turn in turns)
            self._note_busy()
            return turns

    def _act(self, env_groups: list[EnvGroup]) -> None:
        now = time.perf_counter()
        self.profiler.queued("act", sum(now - env_group.since for env_group in env_groups))
        views = [env_group.view for env_group in env_groups if env_group.view is not None]
        episodes = [episode for view in views for episode in view.episodes]
        with self._weights, self.profiler.span("act"):
            version = self.version  # under `_weights`, as `publish` changes both: rows say who acted
            acts = self._decide(views, decision_rng(episodes), "sample")
            made = self._stream.mark(acts.actions)
        for env_group, act in zip(env_groups, split(acts, [len(view.env_ids) for view in views]), strict=True):
            env_group.decision = Decision(act, version, made)
            self._submit(env_group)

    def _decide(self, views: Sequence[EnvGroupView], rng: DecisionRng, mode: ActMode) -> ActOutput:
        """Act for several views at once, with the newest weights and whole pictures."""
        self._stream.wait_for_weights()
        for view in views:
            self._stream.wait(view.drawn)
        return self._actor.act(concatenate([view.obs for view in views]), rng, mode)

    def _value(self, finals: list[EnvGroupView]) -> None:
        """Finish truncated episodes with the critic's value of their last observation."""
        episodes = [episode for view in finals for episode in view.episodes]
        with self._weights, self.profiler.span("act"):
            value = self._decide(finals, decision_rng(episodes), "greedy").value
        if value is None:
            raise RuntimeError(NO_CRITIC)
        with self._lock:
            for episode, final in zip(episodes, value.tolist(), strict=True):
                self._finish(episode.ended(terminated=False, final_value=final))
            for view in finals:
                self._simulation.pool.give_back(view.block)  # no row refers to it: only the value is kept
            self._valuing = False
            self._owner_cv.notify()
