"""Why two evaluations of one checkpoint differ, from options to a ranked table. Imports torch and the simulator."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from embodied_rl.evaluation.actions import ActionRecorder
from embodied_rl.evaluation.adastop import ComparisonPlan, ComparisonState, Decision, Pair, compare
from embodied_rl.evaluation.benchmark import interleaved
from embodied_rl.evaluation.evaluate import run_once
from embodied_rl.evaluation.record import seen_at
from embodied_rl.jobs.evaluation_setup import EvaluationPlan, evaluation_env, make_plan, prepare
from embodied_rl.rollout.sampler import evaluation_specs
from embodied_rl.sim.libero.protocol import Protocol
from embodied_rl.sim.wrappers.flip_gripper import FlipGripper
from embodied_rl.studies.effects import Effect, Trace, effect, ranked, to_json
from embodied_rl.studies.explain_config import Factor, Side, with_factor
from embodied_rl.studies.run import run_until_decided
from embodied_rl.telemetry.pages import write_page
from embodied_rl.telemetry.pictures import side_by_side, write_png
from embodied_rl.telemetry.progress import RunProgress
from embodied_rl.telemetry.tables import success_table
from embodied_rl.types import Array, EpisodeSpec
from embodied_rl.utils.console import LastingConsole
from embodied_rl.utils.output import replace_text
from embodied_rl.utils.words import counted, sentence
from embodied_rl.vec_env import VecEnv

if TYPE_CHECKING:
    from embodied_rl.factory.policies import AnyPolicy

PAGE = "explain.html"
PICTURES = 3
"""Factors whose partings are shown in pictures: the first of the ranking."""
LEVEL = 0.05
"""How probable it is, at most, that any perturbation without an effect is said to have one."""
_UNPERTURBED, _FIRST, _SECOND = "as it is", "as the first", "as the second"


@dataclass(frozen=True, slots=True)
class Variation:
    """One way to evaluate: a side and its protocol."""

    side: Side
    protocol: Protocol


@dataclass(frozen=True, slots=True)
class Budget:
    """How much is run. episodes: at most so many in all, pictures apart; at least one for each variation. looks: at
    perturbations, how often the test looks; what is decided runs no further episodes."""

    episodes: int
    looks: int


@dataclass(frozen=True, slots=True)
class _Study:
    """What is compared.

    Args:
        console, progress: get what happens.
        variations: by name; the first is what the others are compared with.
        per_task: initial states of each task.
        specs: the episodes, the same under every variation.
    """

    console: LastingConsole
    progress: RunProgress
    variations: Mapping[str, Variation]
    per_task: int
    specs: Sequence[EpisodeSpec]

    def run(self, pairs: Sequence[Pair], looks: int) -> tuple[dict[str, list[Trace]], dict[str, Decision]]:
        """Run every variation; those in `pairs` only until the test has decided them, at one of so many looks.

        Returns:
            traces: by variation.
            verdicts: by the first of each pair: one error rate for all pairs and looks.
        """
        traces: dict[str, list[Trace]] = {name: [] for name in self.variations}
        count = len(self.specs)
        plan = ComparisonPlan(
            looks=tuple(sorted({-(-count * look // looks) for look in range(1, looks + 1)})), level=LEVEL
        )
        signs = plan.signs()

        def look() -> ComparisonState:
            outcomes = {name: [trace.success for trace in rows] for name, rows in traces.items()}
            return compare(outcomes, plan, signs, pairs)

        def run_missing(needed: Mapping[str, int]) -> bool:
            missing = {name: most for name, most in needed.items() if len(traces[name]) < most}
            for name, most in missing.items():
                traces[name] += self._traces(name, self.specs[len(traces[name]) : most])
            return bool(missing)

        state = run_until_decided(look, run_missing, {} if pairs else dict.fromkeys(traces, count))
        return traces, {row.first: row.verdict for row in state.comparisons}

    @contextmanager
    def _opened(self, name: str) -> Iterator[tuple[EvaluationPlan, AnyPolicy, VecEnv]]:
        """The variation's plan, its policy, and envs that play it."""
        variation = self.variations[name]
        side = variation.side
        command = dataclasses.replace(side.command, states_per_task=self.per_task)
        plan = dataclasses.replace(make_plan(side.benchmark, command, self.console), protocol=variation.protocol)
        ready = prepare(plan, plan.command)
        with evaluation_env(plan, ready.policy, ready.renderer) as env:
            yield plan, ready.policy, env

    def _traces(self, name: str, specs: Sequence[EpisodeSpec]) -> list[Trace]:
        """Run episodes under a variation."""
        with self._opened(name) as (plan, policy, env):
            own = {spec.episode_id: spec for spec in plan.specs}
            self.progress.stage(name, len(specs))
            recorder = ActionRecorder(env)
            found = run_once(
                self._played(recorder, name),
                policy,
                [own[spec.episode_id] for spec in specs],
                plan.command.mode,
                on_episode=lambda result: self.progress.episode(result.success),
            )
        # Another evaluation seed gives the same states other seeds: pairs are of the same specs.
        return [Trace(spec, found.get(spec.episode_id), recorder.take(spec.episode_id)) for spec in specs]

    def picture(self, name: str, example: tuple[EpisodeSpec, int]) -> list[Array]:
        """What the policy sees, and a person, when it decides the step at which the example parted."""
        with self._opened(name) as (plan, policy, env):
            spec = next(spec for spec in plan.specs if spec.episode_id == example[0].episode_id)
            return seen_at(self._played(env, name), policy, spec, plan.command.mode, example[1])

    def _played(self, env: VecEnv, name: str) -> VecEnv:
        return FlipGripper(env) if self.variations[name].side.changes.flip_gripper else env


def run(first: Side, second: Side | None, found: Sequence[Factor], output: Path, budget: Budget) -> list[Effect]:
    """Change one factor at a time, write explain.json, explain.html and pictures into `output`, and print the ranking.

    Args:
        first: the side that is changed.
        second: where the values come from; None: each factor is a perturbation of `first`.
        found: what differs.
        output: folder.
        budget: how much is run.

    Returns:
        The effects, ranked.
    """
    console = LastingConsole()
    base = _UNPERTURBED if second is None else _FIRST
    variations = {base: Variation(first, first.protocol())}
    variations |= {factor.name: Variation(*_changed(first, second, factor)) for factor in found}
    if second is not None and len(found) > 1:
        variations[_SECOND] = Variation(second, second.protocol())
    pairs = [(factor.name, base) for factor in found] if second is None else []
    with RunProgress(0, console=console) as progress:
        study = _Study(console, progress, variations, *_episodes(first, budget.episodes // len(variations), console))
        traces, verdicts = study.run(pairs, budget.looks)
        effects = []
        for factor in found:
            count = min(len(traces[base]), len(traces[factor.name]))
            sides = traces[base][:count], traces[factor.name][:count]
            effects.append(effect(factor.name, factor.words(), *sides, verdicts.get(factor.name)))
        whole = None if second is None else effects[0]
        if _SECOND in traces:
            whole = effect("everything", ("the first", "the second"), traces[base], traces[_SECOND])
        effects = ranked(effects)
        output.mkdir(parents=True, exist_ok=True)
        shown = _pictures(study, base, effects, output)
    result = {
        "checkpoint": first.command.checkpoint,
        "suite": first.command.suite,
        "episodes": max(item.episodes for item in effects),
        "level": LEVEL if second is None else None,
        "everything": None if whole is None else to_json(whole),
        "factors": [to_json(item) | {"picture": shown.get(item.factor)} for item in effects],
    }
    replace_text(output / "explain.json", json.dumps(result, indent=1) + "\n")
    _write_page(output, first, second, effects, whole, shown)
    console.print(_table(effects, whole))
    console.facts(_lines(effects))
    console.say(f"page, figures and images: {output / PAGE}")
    return effects


def _episodes(side: Side, count: int, console: LastingConsole) -> tuple[int, list[EpisodeSpec]]:
    """So many episodes (at least one), spread over the suite's tasks; and how many states of each task they need."""
    count = max(1, count)
    tasks = make_plan(side.benchmark, dataclasses.replace(side.command, states_per_task=1), console).tasks
    per_task = -(-count // len(tasks.names))
    there = tasks.heldout_states if side.command.states == "heldout" else tasks.train_states
    states = {name: list(rows)[:per_task] for name, rows in there.items()}
    return per_task, interleaved(evaluation_specs(states, side.command.seed))[:count]


def _write_page(
    output: Path,
    first: Side,
    second: Side | None,
    effects: Sequence[Effect],
    whole: Effect | None,
    shown: Mapping[str, str],
) -> None:
    """The ranking and the pictures as one file."""
    top = effects[0]
    rows = [*effects, *([whole] if whole is not None and len(effects) > 1 else [])]
    decided = top.verdict != "not decided"
    told = "The interval is of this factor alone." if top.verdict is None else f"The test says: {top.verdict}."
    captions = {
        item.factor: f"{item.factor}: {sentence(item.example[0].task)}, initial state {item.example[0].init_state}, "
        f"step {item.example[1]}; above {item.first}, below {item.second}"
        for item in effects
        if item.example is not None
    }
    write_page(
        output / PAGE,
        "explain.html",
        title=f"{first.command.checkpoint} on {first.command.suite}",
        large=f"{top.factor}: {100 * top.difference:+.1f} points" if decided else "Not decided",
        small=f"The largest difference in success is that of {top.factor}, from {top.first} to {top.second}: "
        f"{top.difference:+.1%} (95 % interval {top.low:+.1%} to {top.high:+.1%}) on the same "
        f"{counted(top.episodes, 'episode')}. {told}",
        first={
            "first side": first.command.checkpoint,
            "second side": "each perturbation" if second is None else second.command.checkpoint,
            "protocol": first.protocol().name,
            "factors": len(effects),
            "level": f"{LEVEL:g} for all factors together" if second is None else "",
        },
        effects=rows,
        verdicts=any(item.verdict for item in rows),
        pictures=[(captions[factor], (output / name).read_bytes()) for factor, name in shown.items()],
    )


def _changed(first: Side, second: Side | None, factor: Factor) -> tuple[Side, Protocol]:
    if second is not None:
        return with_factor(first, second, factor.name)
    command = dataclasses.replace(first.command, perturb=(factor.name,))
    return dataclasses.replace(first, command=command), first.protocol()


def _pictures(study: _Study, base: str, effects: Sequence[Effect], output: Path) -> dict[str, str]:
    """A picture for each of the first factors that made commands part: the first side above, the second below."""
    shown = {}
    for number, item in enumerate(effects[:PICTURES], 1):
        if item.example is not None:
            rows = [study.picture(name, item.example) for name in (base, item.factor)]
            name = f"{number}-{item.factor.replace(' ', '_')}-step{item.example[1]}.png"
            write_png(output / name, side_by_side(rows))
            shown[item.factor] = name
    return shown


def _table(effects: Sequence[Effect], whole: Effect | None) -> Table:
    """The ranking for a terminal: the values of a factor stand below its name."""
    rows = []
    for item in [*effects, *([whole] if whole is not None and len(effects) > 1 else [])]:
        parted = ("never", "")
        if item.step is not None:
            parted = (f"at step {item.step:.0f}", f"in {item.parted} of {item.episodes}")
        values = [
            (f"{item.success[0]:.0%} -> {item.success[1]:.0%}", ""),
            (f"{item.difference:+.1%}", f"{item.low:+.1%} to {item.high:+.1%}"),
            parted,
        ]
        rows.append((f"{item.factor}\n{item.first} -> {item.second}", values))
    return success_table(("factor", "success", "difference", "commands part"), rows)


def _lines(effects: Sequence[Effect]) -> list[str]:
    """What the ranking rests on."""
    lines = [
        f"  {item.factor}: {counted(item.not_measured, 'pair')} not measured, as the simulator broke"
        for item in effects
        if item.not_measured
    ]
    if effects[0].verdict is None:
        return [*lines, f"  the same {effects[0].episodes} episodes each time; intervals are of one factor alone"]
    verdicts = [f"{item.factor} {item.verdict} ({counted(item.episodes, 'episode')})" for item in effects]
    return [*lines, f"  at level {LEVEL:g} for all together: {', '.join(verdicts)}"]
