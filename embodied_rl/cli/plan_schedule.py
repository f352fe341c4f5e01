"""`embodied-rl plan BENCHMARK [options of train] [--write FILE] [--chart FILE]`: the scheduler that suits this machine.

Probes, fits a cost model, searches, then runs the choice for a few iterations on a copy of the policy and prints what
was predicted beside what was measured.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import resource
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from embodied_rl.cli.select import select
from embodied_rl.config.train import TrainConfig, dump_yaml
from embodied_rl.errors import UserError

if TYPE_CHECKING:
    from embodied_rl.autotune.tune import Tuning
    from embodied_rl.learner.types import TrainablePolicy
    from embodied_rl.utils.profiler import Span
    from embodied_rl.vec_env import VecEnv

WARM_UP, MEASURED = 1, 1
_OWN = ("--write", "--chart")


@dataclass(frozen=True, slots=True)
class Trial:
    """What a few iterations really took. bytes: growth of the process's peak memory."""

    seconds: float
    rows: int
    spans: list[Span]
    bytes: int


def main(argv: list[str]) -> int:
    """Run the command."""
    words, files = _take(argv)
    config = select(words).config
    if config is None:
        raise UserError("plan needs a benchmark, not a run to resume: embodied-rl plan tabletop")
    from rich.console import Console
    from rich.table import Table

    from embodied_rl.autotune.tune import describe, further_devices, tune
    from embodied_rl.factory.envs import cpu_count, pick_renderer
    from embodied_rl.factory.protocol_envs import open_envs
    from embodied_rl.factory.run_config import open_policy_of, resolve
    from embodied_rl.factory.tasks import load_tasks

    console = Console()
    tasks = load_tasks(config.suite, config.tasks)
    config = resolve(config, pick_renderer(config.env.renderer, tasks), tasks)
    policy, _ = open_policy_of(config)
    states = {task.name: list(task.train_states) for task in tasks}
    # a probe's times are those of one thread
    one = dataclasses.replace(config.env, num_threads=1, processes=None)
    with console.status("measuring the stages"), open_envs(tasks, one, config.protocol, policy) as env:
        tuning = tune(config, env, policy, states, cpu_count(), further_devices(config))
    for line in describe(tuning):
        console.print(line, soft_wrap=True, markup=False, highlight=False)
    with console.status("trying it"), open_envs(tasks, tuning.config.env, config.protocol, policy) as env:
        trial = run_trial(tuning.config, env, copy.deepcopy(policy), states)
    table = Table("", "predicted", "measured", title="the schedule chosen, on a copy of the policy")
    for row in compare(tuning, trial, row_bytes(env, trial)):
        table.add_row(*row)
    console.print(table)
    if "--chart" in files:
        _write_chart(files["--chart"], tuning, trial)
    if "--write" in files:
        files["--write"].write_text(dump_yaml(tuning.config), encoding="utf-8")
        console.print(f"to train: embodied-rl train {words[0]} --config {files['--write']}", soft_wrap=True)
    return 0


def run_trial(config: TrainConfig, env: VecEnv, policy: TrainablePolicy, states: Mapping[str, Sequence[int]]) -> Trial:
    """Train `policy` for WARM_UP + MEASURED iterations as `config` says, in the middle of a longer run: also PPO's
    policy learns at once, as it does once the critic is warm, which is what was predicted.
    """
    from embodied_rl.algorithms.config import PPOConfig
    from embodied_rl.algorithms.make import make_algorithm
    from embodied_rl.learner.learner import Learner
    from embodied_rl.rollout.sampler import EpisodeSampler
    from embodied_rl.scheduler.base import Callbacks
    from embodied_rl.scheduler.make import make_profiler, make_scheduler
    from embodied_rl.utils.threads import set_torch_threads

    options = config.algorithm
    if isinstance(options, PPOConfig):
        options = dataclasses.replace(options, critic_warmup_iterations=0)
    algorithm = make_algorithm(options)
    sampler = EpisodeSampler(config.seed, states, algorithm.group_size)
    clock = make_profiler(config.scheduler, 1 << 20)
    peak = _peak_bytes()
    rows, began, ended, cut = 0, 0.0, 0.0, 0
    assert config.num_threads is not None
    set_torch_threads(config.num_threads)
    with tempfile.TemporaryDirectory() as dumps:
        learner = Learner(
            policy,
            algorithm,
            config.learner,
            seed=config.seed,
            dump_dir=Path(dumps),
            threads=config.num_threads if config.device == "cpu" else 1,
        )
        scheduler = make_scheduler(
            config.scheduler,
            env,
            learner,
            sampler,
            clock,
            Callbacks(),
            groups=config.rollout.groups(algorithm.group_size),
            workers=config.env.num_threads,
        )
        with closing(learner), closing(scheduler):
            for batch in scheduler.batches(0, WARM_UP + MEASURED + 2):
                with clock.span("update"):
                    learner.update(batch)
                scheduler.publish(learner.version)
                ended = time.perf_counter()
                if batch.version < WARM_UP:
                    began, cut = ended, len(clock.spans)
                    continue
                rows += len(batch)
                if batch.version == WARM_UP + MEASURED - 1:
                    break
    return Trial(ended - began, rows, clock.spans[cut:], _peak_bytes() - peak)


def row_bytes(env: VecEnv, trial: Trial) -> int:
    """Bytes of the observations of a measured batch."""
    one = env.new_observation(1)
    return (one.images.nbytes + one.proprio.nbytes) * trial.rows // MEASURED


def compare(tuning: Tuning, trial: Trial, batch: int) -> list[tuple[str, str, str]]:
    """(what, predicted, measured). Memory: a batch where it was rendered, its copies for the learner and the next
    rollout's rows; not counted are weights and activations. A stage is under way while at least one thread is at it, as
    on paper threads that share a call count one by one and in the trial they do not.
    """
    from embodied_rl.autotune.memory import rows_held

    played = tuning.found.played
    held = rows_held(tuning.found.choice.scheduler, batch, round(batch * tuning.streamed))
    rows = [
        ("decisions/s", f"{1 / played.seconds_per_row:.1f}", f"{trial.rows / trial.seconds:.1f}"),
        ("s an iteration", f"{played.seconds / played.iterations:.1f}", f"{trial.seconds / MEASURED:.1f}"),
        ("memory that grows with the batch", f"{held / 2**20:.0f} MiB", f"{trial.bytes / 2**20:.0f} MiB with the rest"),
    ]
    return rows + [
        (f"{stage}, s under way", f"{one:.1f}", f"{two:.1f}")
        for stage, real in _REAL_STAGES.items()
        for one in (under_way(played.spans, (stage, "step") if stage == "learn" else (stage,)) / played.iterations,)
        for two in (under_way(trial.spans, real) / MEASURED,)
    ]


_REAL_STAGES = {
    "simulate": ("simulate", "render", "reset"),
    "act": ("act",),
    "learn": ("learn", "update"),
    "evaluate": ("evaluate",),
}


def under_way(spans: Sequence[Span], stages: tuple[str, ...]) -> float:
    """Seconds in which there is a span of one of the stages."""
    seconds, until = 0.0, -math.inf
    for span in sorted((span for span in spans if span.name in stages), key=lambda span: span.begin):
        seconds += max(0.0, span.end - max(span.begin, until))
        until = max(until, span.end)
    return seconds


def _write_chart(path: Path, tuning: Tuning, trial: Trial) -> None:
    """Two charts in two files: PATH as predicted, and beside it as measured."""
    from embodied_rl.telemetry.trace import draw_gantt

    path.write_bytes(draw_gantt(tuning.found.played.spans, "predicted"))
    path.with_name(f"{path.stem}-measured{path.suffix}").write_bytes(draw_gantt(trial.spans, "measured"))


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _take(argv: list[str]) -> tuple[list[str], dict[str, Path]]:
    """Split off this command's own options; the rest is for `train`."""
    rest: list[str] = []
    files: dict[str, Path] = {}
    words = iter(argv)
    for word in words:
        name, equals, value = word.partition("=")
        if name not in _OWN:
            rest.append(word)
            continue
        given = value if equals else next(words, "")
        if not given or given.startswith("--"):
            raise UserError(f"{name} needs the name of a file.")
        files[name] = Path(given)
        if not files[name].absolute().parent.is_dir():
            raise UserError(f"{name} {given}: its folder does not exist.")
    return rest, files
