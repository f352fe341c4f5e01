"""A schedule played on paper: the pipelined scheduler's rules and stage costs in virtual time, without threads.

Which episode runs next and when a batch is whole is decided by the real `GroupQueue`; what is modelled is how long
stages take and who waits for whom. Used to predict a plan before it is tried.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from embodied_rl.autotune.costs import Cost, Costs
from embodied_rl.autotune.virtual import Machine
from embodied_rl.autotune.virtual_learner import VirtualLearner
from embodied_rl.autotune.work import Work
from embodied_rl.rollout.groups import BatchEnd, Group, GroupQueue
from embodied_rl.rollout.lookahead import Lookahead
from embodied_rl.rollout.observation_pool import Trajectory
from embodied_rl.rollout.sampler import EpisodeSampler
from embodied_rl.scheduler.config import PipelinedConfig, SchedulerConfig
from embodied_rl.scheduler.pipeline.env_group import make_env_groups
from embodied_rl.types import EpisodeResult, EpisodeSpec
from embodied_rl.utils.profiler import Span


@dataclass(frozen=True, slots=True)
class Played:
    """The measured part of a run: seconds and decisions of `iterations` iterations, and what each server did when."""

    seconds: float
    rows: int
    iterations: int
    spans: list[Span]

    @property
    def seconds_per_row(self) -> float:
        """What a schedule is judged by: rows that are trained on. If dynamic sampling left none, as if it were one."""
        return self.seconds / max(1, self.rows)


@dataclass(slots=True)
class _Episode:
    """One under way. left: decisions still to be carried out."""

    spec: EpisodeSpec
    length: int
    left: int


@dataclass(slots=True)
class _Lane:
    """Slots that go together, and the episodes in those that are filled."""

    size: int
    running: list[_Episode] = field(default_factory=list)


class _Pipeline:
    """One run. spread: a lane's worlds step on all servers at once, one lane at a time, as a lockstep loop does."""

    def __init__(self, costs: Costs, work: Work, config: SchedulerConfig, *, spread: bool, lanes: int) -> None:
        self._machine = Machine(costs)
        self._costs, self._work, self._spread = costs, work, spread
        pipelined = config if isinstance(config, PipelinedConfig) else None
        by_groups = work.minibatch_groups is not None
        self._streams = pipelined is not None and (pipelined.mode == "on_policy" or by_groups)
        self._pipelined = pipelined is not None
        self._wait = pipelined.max_batch_delay_ms / 1e3 if pipelined else 0.0
        self._stream = GroupQueue(
            EpisodeSampler(0, {"plan": range(64)}, work.group_size),
            groups=work.groups,
            success_rate_range=work.keep,
            max_oversampling=work.max_factor,
            lookahead=pipelined.lookahead(work.worlds, work.groups, work.group_size, streams=self._streams)
            if pipelined
            else Lookahead(),
        )
        self._beyond = pipelined.staleness if pipelined else 0
        self._lanes = [_Lane(len(lane.env_ids)) for lane in make_env_groups(work.worlds, lanes)]
        self._parked = deque(self._lanes)
        self._learner = VirtualLearner(
            self._machine, work, lambda: len(self._parked) < len(self._lanes), streams=self._streams
        )
        self._queue: list[_Lane] = []
        self._acted: dict[int, list[int]] = {}  # versions that decided, by episode
        self._stale: list[int] = []  # rows of older versions in each group of the batch
        self._acting = False
        self._deadline_set = False

    def run(self, warm_up: int, measured: int) -> Played:
        """Play the run; the first `warm_up` iterations do not count, nor does what runs ahead of the last one."""
        last = warm_up + measured
        self._stream.begin(0, last + 2 + self._beyond)
        self._wake()
        clock, spans = self._machine.clock, self._machine.spans
        rows, began, cut = 0, 0.0, 0
        for version in range(last):
            if version == warm_up:
                began, cut = clock.now, len(spans)
            batch = self._gather()
            self._learner.update(batch, self._stale)
            rows += sum(batch) if version >= warm_up else 0
            self._stream.publish(version + 1)
            self._wake()
        return Played(clock.now - began, rows, measured, spans[cut:])

    def _gather(self) -> list[int]:
        """Wait for a batch; rows of its groups. Only the learner waits for things in turn."""
        groups: list[int] = []
        self._stale = []
        waiting: deque[int] = deque()
        event = None
        while True:
            while not isinstance(event, BatchEnd) and (event := self._stream.take()) is not None:
                if isinstance(event, BatchEnd):
                    break
                rows, stale = self._rows_of(event)
                groups.append(rows)
                self._stale.append(stale)
                if self._streams:
                    waiting.append(rows)
                    self._learner.correct(rows if self._work.recompute else stale)
            if waiting:
                self._learner.add(waiting.popleft())
            elif isinstance(event, BatchEnd):
                return groups
            else:
                self._machine.clock.step()

    def _rows_of(self, group: Group) -> tuple[int, int]:
        """Rows of a group, and how many of them older policies decided."""
        acted = [version for member in group.members for version in self._acted.pop(member.result.spec.episode_id)]
        rows = sum(member.result.num_decisions for member in group.members)
        return rows, sum(version < self._stream.version for version in acted)

    # The rollout

    def _wake(self) -> None:
        while self._parked and (spec := self._stream.next_episode()) is not None:
            lane = self._parked.popleft()
            self._begin(lane, spec)
            self._observe(lane)

    def _begin(self, lane: _Lane, spec: EpisodeSpec) -> None:
        length = self._work.length(spec)
        lane.running.append(_Episode(spec, length, length))

    def _observe(self, lane: _Lane) -> None:
        """Fill the free envs; then the lane waits for the policy or is parked. Frames are part of a step's cost."""
        while len(lane.running) < lane.size and (spec := self._stream.next_episode()) is not None:
            self._begin(lane, spec)
        if lane.running:
            self._queue.append(lane)
            self._act()
        else:
            self._parked.append(lane)
            self._wake()

    def _act(self) -> None:
        if self._acting or not self._queue:
            return
        waiting = len(self._queue) + len(self._parked) < len(self._lanes)
        if self._wait and waiting:
            if not self._deadline_set:
                self._deadline_set = True
                self._machine.clock.after(self._wait, self._decide)
            return
        self._decide()

    def _decide(self) -> None:
        self._deadline_set = False
        if self._acting or not self._queue:
            return
        lanes, self._queue, self._acting = self._queue, [], True
        for episode in (episode for lane in lanes for episode in lane.running):
            self._acted.setdefault(episode.spec.episode_id, []).append(self._stream.version)
        cost = self._costs.act

        def done() -> None:
            self._acting = False
            for lane in lanes:
                self._simulate(lane)
            self._act()

        self._machine.device(cost).use("act", cost.of(sum(len(lane.running) for lane in lanes)), done)

    def _simulate(self, lane: _Lane) -> None:
        self._give_up(lane)
        cost, rows = self._costs.simulate, len(lane.running)
        if not rows:
            self._observe(lane)
        elif self._spread:
            seconds = cost.of(rows) / min(self._costs.servers_of(cost), rows)
            lockstep = Cost(f"{cost.device} (all)" if self._costs.servers_of(cost) > 1 else cost.device, cost.row)
            self._machine.device(lockstep).use("simulate", seconds, lambda: self._stepped(lane))
        else:
            shares = [len(rows) for rows in np.array_split(np.arange(rows), min(self._costs.steppers, rows))]
            left = [len(shares)]

            def done() -> None:
                left[0] -= 1
                if not left[0]:
                    self._stepped(lane)

            for share in shares:
                self._machine.device(cost).use("simulate", cost.of(share), done)

    def _give_up(self, lane: _Lane) -> None:
        """Episodes of groups that were dropped meanwhile go no further."""
        going = []
        for episode in lane.running:
            if self._pipelined and self._stream.is_stopped(episode.spec):  # serial ones run on
                self._stream.stop(episode.spec)
            else:
                going.append(episode)
        lane.running = going

    def _stepped(self, lane: _Lane) -> None:
        for episode in lane.running:
            episode.left -= 1
        over = [episode for episode in lane.running if not episode.left]
        lane.running = [episode for episode in lane.running if episode.left]
        dropped = [recording for episode in over for recording in self._end(episode)]
        if dropped:
            self._wake()
        self._observe(lane)

    def _end(self, episode: _Episode) -> list[Trajectory]:
        """Count an episode; what is dropped because of it."""
        spec, won = episode.spec, self._work.won(episode.spec)
        result = EpisodeResult(spec, won, won, not won, float(won), episode.length, episode.length)
        return self._stream.add(Trajectory(result))


def play(
    costs: Costs, work: Work, config: SchedulerConfig, *, warm_up: int = 1, measured: int = 3, lockstep: int = 0
) -> Played:
    """How long `work` takes under a scheduler. lockstep: instead cut the worlds into that many halves or parts, each of
    which steps on all cores while the policy acts for another, and learn when the rollout is over.

    Under `SerialConfig` all worlds are one such part.
    """
    if isinstance(config, PipelinedConfig) and not lockstep:
        same = costs.act.device == costs.simulate.device
        lanes = config.num_env_groups(work.worlds, cpu=same)
        return _Pipeline(costs, work, config, spread=False, lanes=lanes).run(warm_up, measured)
    return _Pipeline(costs, work, config, spread=True, lanes=lockstep or 1).run(warm_up, measured)
