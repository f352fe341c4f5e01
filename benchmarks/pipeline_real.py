"""The real part of `embodied-rl bench pipeline`: the small OpenVLA learns on the tabletop under each scheduler.

Preset, policy and envs are those of `bench loop`, with whole groups as minibatches for all schedulers, since `stream`
needs them, and updates of policy and critic from the start. Two contenders render after every control step, as the main
peer's LIBERO environments do. In 'peer' all envs begin together and go on to the horizon with weight 0, as in the
peer's loop (`pipeline_peer`). 'lockstep' is the serial loop, whose envs are refilled at once. Decisions are those
until an episode is over. Every scheduler has the env groups and threads that `train` gives it.

All are opened and do one iteration that does not count; then they take turns of one iteration each (the same episodes
for all that are on-policy), since a machine's speed can drift within minutes. A figure is the median of its turns.
`async` would go on with its episodes while others have their turn: it begins anew each time, and its third iteration
counts.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from embodied_rl.algorithms.base import OnPolicyAlgorithm
from embodied_rl.algorithms.config import PPOConfig
from embodied_rl.algorithms.make import make_algorithm
from embodied_rl.benchmarks.loop import bench_config
from embodied_rl.benchmarks.pipeline_peer import PeerLoop, PPOWithMaskedRows
from embodied_rl.config.env import MujocoConfig
from embodied_rl.config.policies import SHIPPED
from embodied_rl.config.train import TrainConfig
from embodied_rl.factory.policies import open_policy, policy_folder, prepare_policy
from embodied_rl.factory.suites import load, open_tasks
from embodied_rl.factory.view import view_of
from embodied_rl.learner.learner import Learner
from embodied_rl.rollout.sampler import EpisodeSampler
from embodied_rl.scheduler.base import Callbacks, Scheduler
from embodied_rl.scheduler.config import PipelinedConfig, SchedulerConfig, SerialConfig
from embodied_rl.scheduler.make import make_profiler, make_scheduler
from embodied_rl.types import ChunkResult
from embodied_rl.utils.machine import cpu_count, pick_device
from embodied_rl.utils.profiler import Profiler
from embodied_rl.utils.threads import set_torch_threads
from embodied_rl.vec_env import VecEnv

if TYPE_CHECKING:
    from embodied_rl.factory.policies import AnyPolicy
    from embodied_rl.sim.mujoco.task import MujocoTask

TURNS = 7
RUN_UP = 3
"""Iterations of `async` in a turn, of which the last counts: the first for which as much was done ahead as it does."""
MINIBATCH_EPISODES = 16
_MOST_SPANS = 1 << 20


MakePolicy = Callable[[TrainConfig, Sequence["MujocoTask"]], "AnyPolicy"]
"""Opens the policy that learns on these tasks."""


@dataclass(frozen=True, slots=True)
class Way:
    """A scheduler. each_step: every control step is drawn. peer: in the peer's loop."""

    name: str
    scheduler: SchedulerConfig
    each_step: bool = False
    peer: bool = False


WAYS = (
    Way("serial", SerialConfig()),
    Way("peer", SerialConfig(), each_step=True, peer=True),
    Way("lockstep", SerialConfig(), each_step=True),
    Way("stream", PipelinedConfig()),
    Way("async", PipelinedConfig(mode="async")),
)


class RendersEachStep:
    """A simulator that steps all its envs together and draws every camera after each control step.

    The last step's frame is what `observe` draws, so a decision of K steps draws K times. An episode's last frame is
    drawn though nobody looks at it.
    """

    def __init__(self, env: VecEnv) -> None:
        self.num_envs, self.info = env.num_envs, env.info
        self.reset, self.observe, self.new_observation = env.reset, env.observe, env.new_observation
        self.frame, self.close = env.frame, env.close
        self._env = env
        self._unseen = env.new_observation(env.num_envs)

    def step(self, env_ids: Sequence[int], actions: torch.Tensor) -> ChunkResult:
        """Step by step; whoever is over waits for the others, and is not drawn."""
        rows, steps = actions.shape[:2]
        out, alive = ChunkResult.zeros(rows, steps), torch.arange(rows)
        for k in range(steps):
            part = self._env.step([env_ids[row] for row in alive.tolist()], actions[alive, k : k + 1])
            out.reward[alive, k] = part.reward[:, 0]
            out.steps_taken[alive] += part.steps_taken
            for name in ("terminated", "truncated", "success", "failed"):
                getattr(out, name)[alive] |= getattr(part, name)
            over = part.terminated | part.truncated | part.failed
            drawn = alive[over] if k == steps - 1 else alive
            if len(drawn):
                self._env.observe([env_ids[row] for row in drawn.tolist()], self._unseen)
            alive = alive[~over]
            if not len(alive):
                break
        return out


def real_config(quick: bool = False) -> TrainConfig:
    """The preset with minibatches of whole episodes, about as large as its minibatches of rows, and no warm-up of the
    critic."""
    config = bench_config(quick)
    assert isinstance(config.algorithm, PPOConfig)
    return replace(
        config,
        algorithm=replace(config.algorithm, critic_warmup_iterations=0),
        learner=replace(config.learner, minibatch_size=None, minibatch_groups=MINIBATCH_EPISODES),
    )


def shipped_policy(config: TrainConfig, tasks: Sequence[MujocoTask]) -> AnyPolicy:
    """The policy of the package, as the recipe trains it."""
    policy = open_policy(SHIPPED, pick_device(config.device))
    prepare_policy(policy, config.policy, policy_folder(SHIPPED))
    policy.with_value = isinstance(config.algorithm, PPOConfig)
    return policy


def iterations(way: Way, config: TrainConfig, make_policy: MakePolicy = shipped_policy) -> Generator[dict[str, Any]]:
    """Train, and yield a row an iteration; until it is asked for the next, an on-policy scheduler does nothing."""
    cores = cpu_count()
    set_torch_threads(cores)
    assert isinstance(config.env, MujocoConfig), "as the recipe says"
    tasks = load(config.suite, config.tasks, config.env)
    policy = make_policy(config, tasks.scenes)
    env_config = replace(config.env, num_threads=cores)
    algorithm = make_algorithm(config.algorithm)
    if way.peer:
        assert isinstance(config.algorithm, PPOConfig)
        algorithm = PPOWithMaskedRows(config.algorithm)
    sampler = EpisodeSampler(config.seed, tasks.train_states, algorithm.group_size)
    clock = make_profiler(way.scheduler, max_spans=_MOST_SPANS)
    view = view_of(policy, stop_at_success=not way.peer)
    simulated = open_tasks(tasks, env_config, view)
    with tempfile.TemporaryDirectory() as dumps, simulated as env:
        learner = Learner(
            policy,
            algorithm,
            config.learner,
            seed=config.seed,
            dump_dir=Path(dumps),
            threads=cores if policy.device.type == "cpu" else 1,
        )
        groups = config.rollout.groups(algorithm.group_size)
        scheduler = _scheduler(way, env, policy, sampler, algorithm, learner, clock, groups)
        with closing(scheduler):
            began, used = time.perf_counter(), time.process_time()
            for batch in scheduler.batches(0, config.iterations):
                with clock.span("update"):
                    learner.update(batch)
                scheduler.publish(learner.version)
                seconds, cpu = time.perf_counter() - began, time.process_time() - used
                decisions = int(batch.info["rollout/decisions"])
                row = {
                    "scheduler": way.name,
                    "iteration": batch.version,
                    "decisions_per_s": decisions / seconds,
                    "seconds": seconds,
                    "cpu_seconds": cpu,
                    "decisions": decisions,
                    "threads": cores,
                    "times": clock.drain(),
                    "calls": Counter(span.name for span in clock.spans),
                }
                clock.spans.clear()
                with clock.excluded():  # others have their turn
                    yield row
                began, used = time.perf_counter(), time.process_time()


def _scheduler(
    way: Way,
    env: VecEnv,
    policy: AnyPolicy,
    sampler: EpisodeSampler,
    algorithm: OnPolicyAlgorithm,
    learner: Learner,
    clock: Profiler,
    groups: int,
) -> Scheduler | PeerLoop:
    simulated = RendersEachStep(env) if way.each_step else env
    if isinstance(algorithm, PPOWithMaskedRows):
        return PeerLoop(simulated, policy, sampler, algorithm, clock, groups)
    return make_scheduler(
        way.scheduler, simulated, learner, sampler, clock, Callbacks(), groups=groups, workers=cpu_count()
    )


def measure_all(config: TrainConfig, turns: int = TURNS) -> Generator[dict[str, Any]]:
    """Rows of `turns` turns, as they are measured; in a turn each scheduler does one iteration, on this machine."""
    live = {way.name: iterations(way, config) for way in WAYS if not runs_ahead(way)}
    try:
        for rows in live.values():
            next(rows)
        for turn in range(turns):
            # there and back, so that a machine that gets slower or faster does so for all alike
            for way in WAYS if turn % 2 == 0 else reversed(WAYS):
                if runs_ahead(way):
                    with closing(iterations(way, config)) as rows:
                        *_, row = islice(rows, RUN_UP)
                else:
                    row = next(live[way.name])
                yield row | {"turn": turn}
    finally:
        for rows in live.values():
            rows.close()


def runs_ahead(way: Way) -> bool:
    """Whether the next iteration's episodes begin before the update is done."""
    return isinstance(way.scheduler, PipelinedConfig) and way.scheduler.mode == "async"


def ratios_of(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """real.<scheduler>.decisions_per_s, and real.<overlap>.vs_serial, .vs_peer and .vs_lockstep.

    Each also with _low and _high. Speeds are medians over the turns, ratios medians of each turn's; low and high
    are the turns' extremes.
    """
    turns = [
        {row["scheduler"]: row["decisions_per_s"] for row in rows if row["turn"] == turn}
        for turn in sorted({row["turn"] for row in rows})
    ]
    found = {f"{name}.decisions_per_s": [speed[name] for speed in turns] for name in turns[0]}
    found |= {
        f"{name}.vs_{other}": [speed[name] / speed[other] for speed in turns]
        for name in ("stream", "async")
        for other in ("serial", "peer", "lockstep")
    }
    ratios: dict[str, float] = {}
    for name, values in found.items():
        ratios |= {
            f"real.{name}": float(np.median(values)),
            f"real.{name}_low": min(values),
            f"real.{name}_high": max(values),
        }
    return ratios
