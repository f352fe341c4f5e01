"""The pipelined rollout: lanes of slots move between simulator workers and the policy; nobody waits for a whole round.

A worker takes a lane through step, reset and render without a break; then the lane queues for the policy. The policy
acts on all lanes that wait, in one batch, while workers move the others. Lanes without work are parked.
"""

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
from embodied_rl.rollout.actor import Actor
from embodied_rl.rollout.chunk import observe_ends, open_ends, step_rows
from embodied_rl.rollout.episode import NO_CRITIC, Running, decision_rng, executed_terms
from embodied_rl.rollout.groups import Closed, Group, GroupStream
from embodied_rl.rollout.observation_pool import Recording, Round, RowStore
from embodied_rl.rollout.retries import cause_of
from embodied_rl.scheduler.pipeline.batching import Patience
from embodied_rl.scheduler.pipeline.cuda_stream import ActStream
from embodied_rl.scheduler.pipeline.env_group import Decision, Lane, View, join, make_lanes, make_round, split
from embodied_rl.types import ChunkResult, EpisodeResult
from embodied_rl.utils.threads import set_torch_threads, shared_cores
from embodied_rl.utils.timeline import Timeline
from embodied_rl.vec_env import VecEnv

_POLL_SECONDS = 0.1


class RolloutEngine:
    """Runs the episodes of `stream` with `policy` in `env`, in threads of its own, until it is closed.

    stages: lanes that the slots are cut into; workers: threads that step and render; act_wait: how long (s) the policy
    waits for more lanes than the first; None: as `Patience` says. final_value: as in `drive.Driver`. threads: for
    acting, see `yield_to`.
    One thread, the owner, calls the methods.
    """

    def __init__(
        self,
        env: VecEnv,
        policy: Policy,
        stream: GroupStream,
        clock: Timeline,
        *,
        stages: int,
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
        self._lanes = make_lanes(env.num_envs, stages)
        self.store = RowStore(env.new_observation, max(len(lane.slots) for lane in self._lanes))
        self._parked = deque(self._lanes)
        self._queue: list[Lane] = []
        self._finals: list[View] = []
        self._valuing = 0
        self._results: list[EpisodeResult] = []
        self._error: BaseException | None = None
        self._closed = False
        self._installing = False
        self._lock = threading.RLock()
        self._wanted = threading.Condition(self._lock)  # the policy has something to do
        self._news = threading.Condition(self._lock)  # the owner may find something
        self._weights = threading.Lock()
        self._workers = ThreadPoolExecutor(workers, "sim")
        self._actor = Actor(policy, env.num_envs, threads)
        self._stream = ActStream(policy)
        self._server = threading.Thread(target=self._serve, args=(shared_cores(threads),), name="act", daemon=True)
        self._server.start()

    # What the owner calls

    def publish(self, version: int, install: Callable[[], None], *, worth: float = 1.0) -> None:
        """From now on version `version` acts; `install` puts its weights in place, while nothing acts.

        worth: as for `GroupStream.publish`.
        """
        with self._lock:
            self._installing = True  # or a busy policy might never let go
        with self._weights:
            install()
            self._stream.installed()
            self.version = version
        with self._lock:
            self._installing = False
            self.stream.publish(version, worth)
            self._wanted.notify()
            self._wake()

    def wait(
        self, on_episode: Callable[[EpisodeResult], None], poll: Callable[[], None], *, block: bool = True
    ) -> Group | Closed | None:
        """The next kept group in order, or the end of the batch; None if neither is there and it is not to `block`.

        on_episode hears of every episode that ended meanwhile; poll is called several times a second, and what it
        raises is passed on, as is what went wrong in any thread.
        """
        while True:
            poll()
            with self._lock:
                self._raise()
                event = self.stream.take()
                results, self._results = self._results, []
                if event is None and not results and block:
                    self._news.wait(_POLL_SECONDS)
            for result in results:
                on_episode(result)
            if event is not None or not block:
                return event

    def drop(self, recordings: Sequence[Recording]) -> None:
        """Let the memory of these rows be used again."""
        with self._lock:
            self.store.drop([row for recording in recordings for row in recording.rows])

    @contextmanager
    def paused(self, poll: Callable[[], None]) -> Iterator[None]:
        """No episode begins, those that run come to their end, and then the `with` block has simulator and policy."""
        with self._lock:
            self.stream.paused = True
        try:
            while True:
                poll()
                with self._lock:
                    self._raise()
                    if self._idle():
                        break
                    self._news.wait(_POLL_SECONDS)
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
            self._wanted.notify_all()
        self._server.join()
        self._actor.close()
        self._workers.shutdown(cancel_futures=True)

    def yield_to(self, busy: Callable[[], bool]) -> None:
        """Leave half of the acting threads and cores to others while `busy()`; results are the same."""
        self._actor.yield_to(busy)

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def busy(self) -> bool:
        """Whether episodes run."""
        return len(self._parked) < len(self._lanes)

    def _idle(self) -> bool:
        return not self.busy() and not self._finals and self._valuing == 0

    # Workers

    def _wake(self) -> None:
        """Give parked lanes what there is to run."""
        while self._parked and (spec := self.stream.next_episode()) is not None:
            lane = self._parked.popleft()
            lane.assigned = spec
            self._submit(lane)

    def _submit(self, lane: Lane) -> None:
        lane.since = time.perf_counter()
        if not self._closed:
            self._workers.submit(self._advance, lane)

    def _advance(self, lane: Lane) -> None:
        """Carry out a lane's decision, fill its slots, render; then it waits for the policy or is parked."""
        self.clock.queued("simulate", time.perf_counter() - lane.since)
        try:
            if lane.decision is not None:
                self._step(lane)
            self._refill(lane)
            view = self._render(lane) if lane.running else None
            with self._lock:
                now = time.perf_counter()
                self._patience.returned(now - lane.since)
                lane.view, lane.decision, lane.since = view, None, now
                if view is not None:
                    self._queue.append(lane)
                    self._wanted.notify()
                else:
                    self._parked.append(lane)
                    self._wake()
                    self._news.notify()
                    self._wanted.notify()  # the policy may wait for this lane
        except BaseException as error:  # noqa: BLE001 - the owner raises it
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            self._error = self._error or error
            self._news.notify()

    def _render(self, lane: Lane) -> View:
        slots = sorted(lane.running)
        with self._lock:
            block, obs = self.store.take(len(slots))
        with self.clock.stage("render"):
            self.env.observe(slots, obs)  # where that fails, so does the next step
        return View(slots, [lane.running[slot] for slot in slots], block, obs)

    def _render_ends(self, lane: Lane, slots: list[int], result: ChunkResult) -> View | None:
        """What truncated episodes show now, to be valued; those that show nothing any more failed."""
        if not self._final_value or not (ended := open_ends(result)):
            return None
        with self._lock:
            block, out = self.store.take(len(ended))
        with self.clock.stage("render"):
            rows, obs = observe_ends(self.env, slots, result, ended, out)
        if rows:
            return View([slots[row] for row in rows], [lane.running[slots[row]] for row in rows], block, obs)
        with self._lock:
            self.store.give_back(block)
        return None

    def _refill(self, lane: Lane) -> None:
        with self._lock:
            first = [lane.assigned] if lane.assigned is not None else []
            lane.assigned = None
            free = lane.free_slots()
            specs = first + [spec for _ in free[len(first) :] if (spec := self.stream.next_episode()) is not None]
        if specs:
            slots = free[: len(specs)]
            with self.clock.stage("reset"):
                self.env.reset(slots, specs)
            lane.running |= {slot: Running(spec) for slot, spec in zip(slots, specs, strict=True)}

    def _step(self, lane: Lane) -> None:
        view, decision = lane.view, lane.decision
        assert view is not None
        assert decision is not None
        with self._lock:
            wanted = [not self.stream.is_stopped(episode.spec) for episode in view.episodes]
        rows = np.flatnonzero(wanted)
        with self.clock.stage("simulate"):
            result = step_rows(self.env, view.slots, decision.act.actions, rows)
        mask = executed_terms(result.steps_taken, self.policy.chunk_len, self.policy.terms_per_step)
        round_ = make_round(view, decision, result, mask)
        for row in rows:
            view.episodes[row].account(result, round_, int(row), record=True)
        final = self._render_ends(lane, view.slots, result)
        with self._lock:
            self._settle(lane, round_, result, np.asarray(wanted), set(final.slots) if final is not None else set())
            if final is not None:
                self._finals.append(final)
                self._wanted.notify()

    def _settle(self, lane: Lane, round_: Round, result: ChunkResult, wanted: np.ndarray, valued: set[int]) -> None:
        """Take what is over out of the lane: stopped, failed and finished episodes; `valued` slots finish later."""
        assert lane.view is not None
        over = ~wanted | result.terminated | result.truncated | result.failed
        for row in np.flatnonzero(over):
            slot = lane.view.slots[row]
            episode = lane.running.pop(slot)
            if not wanted[row]:
                self.store.drop([*episode.rows, (round_, int(row))])
                self.stream.stop(episode.spec)
            elif result.failed[row]:
                self.store.drop(episode.rows)
                self.stream.retry(episode.spec, cause_of(round_.act.actions[row]))
            elif slot not in valued:
                self._finish(episode.ended(terminated=bool(result.terminated[row])))
        self._news.notify()

    def _finish(self, recording: Recording) -> None:
        self._results.append(recording.result)
        dropped = self.stream.add(recording)
        if dropped:
            self.store.drop([row for member in dropped for row in member.rows])
            self._wake()

    # The policy

    def _serve(self, threads: int) -> None:
        set_torch_threads(threads)
        try:
            with self._stream.active():
                self._serve_lanes()
        except BaseException as error:  # noqa: BLE001 - the owner raises it
            self._fail(error)

    def _serve_lanes(self) -> None:
        while True:
            with self._lock:
                lanes, finals = self._collect()
            if self._closed:
                return
            if lanes:
                self._act(lanes)
            if finals:
                self._value(finals)

    def _collect(self) -> tuple[list[Lane], list[View]]:
        """Wait for work, then for more of it while some is on its way and time is left."""
        while not self._closed and (self._installing or not (self._queue or self._finals)):
            self._wanted.wait()
        until = self._deadline()
        while len(self._queue) + len(self._parked) < len(self._lanes) and not self._closed:
            left = until - time.perf_counter()
            if left <= 0:
                break
            self._wanted.wait(left)
            if self._act_wait is None:
                until = min(until, self._deadline())
        lanes, self._queue = self._queue, []
        finals, self._finals = self._finals, []
        self._valuing = len(finals)
        return lanes, finals

    def _deadline(self) -> float:
        """When the policy acts at the latest on what waits for it."""
        now = time.perf_counter()
        if self._act_wait is not None:
            return now + self._act_wait
        here = {id(lane) for lane in (*self._queue, *self._parked)}
        away = ((len(lane.running), lane.since) for lane in self._lanes if id(lane) not in here)
        return self._patience.until(now, sum(len(lane.running) for lane in self._queue), away)

    def _act(self, lanes: list[Lane]) -> None:
        now = time.perf_counter()
        self.clock.queued("act", sum(now - lane.since for lane in lanes))
        views = [lane.view for lane in lanes if lane.view is not None]
        episodes = [episode for view in views for episode in view.episodes]
        with self._weights, self.clock.stage("act"):
            self._stream.wait_for_weights()
            version = self.version
            began = time.perf_counter()
            kept = self._actor.act(join(views), decision_rng(episodes), "sample")
            self._patience.decided(len(episodes), time.perf_counter() - began)
        for lane, act in zip(lanes, split(kept, [len(view.slots) for view in views]), strict=True):
            lane.decision = Decision(act, version)
            self._submit(lane)

    def _value(self, finals: list[View]) -> None:
        """Finish truncated episodes with the critic's value of their last observation."""
        episodes = [episode for view in finals for episode in view.episodes]
        with self._weights, self.clock.stage("act"):
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
            self._news.notify()
