"""Why two evaluations of one checkpoint differ, from options to a ranked table. Imports torch and the simulator."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from embodied_rl.evaluation.actions import ActionRecorder
from embodied_rl.evaluation.benchmark import interleaved
from embodied_rl.evaluation.evaluate import run_once
from embodied_rl.evaluation.paired import ComparisonPlan, compare
from embodied_rl.evaluation.record import seen_at
from embodied_rl.jobs.evaluation_setup import EvaluationPlan, make_plan, open_evaluation_env, prepare
from embodied_rl.rollout.sampler import evaluation_specs
from embodied_rl.sim.libero.protocol import Protocol
from embodied_rl.sim.wrappers.flip_gripper import FlipGripper
from embodied_rl.studies.effects import Effect, Trace, effect, ranked, to_json
from embodied_rl.studies.explain_config import Factor, Side, with_factor
from embodied_rl.telemetry.pages import write_page
from embodied_rl.telemetry.pictures import side_by_side, write_png
from embodied_rl.telemetry.progress import RunProgress
from embodied_rl.types import Array, EpisodeSpec
from embodied_rl.utils.console import LastingConsole
from embodied_rl.utils.output import replace_text
from embodied_rl.utils.words import counted, sentence
from embodied_rl.vec_env import VecEnv

PAGE = "explain.html"
PICTURES = 3
"""Factors whose partings are shown in pictures: the first of the ranking."""
LEVEL = 0.05
"""How probable it is, at most, that any perturbation without an effect is said to have one."""
_BASE = "as it is"


@dataclass(frozen=True, slots=True)
class Variation:
    """One way to evaluate: a side and its protocol."""

    side: Side
    protocol: Protocol


@dataclass(frozen=True, slots=True)
class _Study:
    """What is compared. per_task: states of each task; specs: the episodes, the same under every variation."""

    console: LastingConsole
    progress: RunProgress
    per_task: int
    specs: list[EpisodeSpec]

    def plan(self, variation: Variation) -> EvaluationPlan:
        """The variation's plan for these episodes."""
        command = dataclasses.replace(variation.side.command, states_per_task=self.per_task)
        plan = make_plan(variation.side.benchmark, command, self.console)
        return dataclasses.replace(plan, protocol=variation.protocol)

    def traces(self, name: str, variation: Variation, wanted: slice = slice(None)) -> list[Trace]:
        """Run those of the episodes under the variation."""
        plan = self.plan(variation)
        ready = prepare(plan, plan.command)
        seeds = {spec.episode_id: spec for spec in plan.specs}
        specs = [seeds[spec.episode_id] for spec in self.specs[wanted]]
        self.progress.stage(name, len(specs))
        with open_evaluation_env(plan, ready.policy, ready.renderer) as env:
            recorder = ActionRecorder(env)
            found = run_once(
                _played(recorder, variation.side),
                ready.policy,
                specs,
                plan.command.mode,
                on_episode=lambda result: self.progress.episode(result.success),
            )
        return [Trace(spec, found.get(spec.episode_id), recorder.take(spec.episode_id)) for spec in specs]

    def picture(self, variation: Variation, example: tuple[EpisodeSpec, int]) -> list[Array]:
        """What the policy sees, and a person, when it decides the step at which the example parted."""
        plan = self.plan(variation)
        ready = prepare(plan, plan.command)
        spec = next(spec for spec in plan.specs if spec.episode_id == example[0].episode_id)
        with open_evaluation_env(plan, ready.policy, ready.renderer) as env:
            return seen_at(_played(env, variation.side), ready.policy, spec, plan.command.mode, example[1])


@dataclass(frozen=True, slots=True)
class Budget:
    """How much is run. episodes: at most so many in all, pictures apart; at least one for each variation. looks: at
    perturbations, how often the test looks; what is decided runs no further episodes."""

    episodes: int
    looks: int


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
    variations = {factor.name: Variation(*_changed(first, second, factor)) for factor in found}
    base = Variation(first, first.protocol())
    with RunProgress(0, console=console) as progress:
        sides = len(variations) + 1 + (second is not None and len(found) > 1)
        count = max(1, budget.episodes // sides)
        tasks = make_plan(first.benchmark, dataclasses.replace(first.command, states_per_task=1), console).tasks
        per_task = -(-count // len(tasks.names))
        states = {name: list(rows)[:per_task] for name, rows in tasks.heldout_states.items()}
        specs = interleaved(evaluation_specs(states, first.command.seed))[:count]
        study = _Study(console, progress, per_task, specs)
        whole = None
        if second is None:
            effects = _in_looks(study, base, variations, found, budget.looks)
        else:
            before = study.traces("as the first", base)
            effects = [
                effect(factor.name, factor.words(), before, _same_specs(before, study.traces(factor.name, variation)))
                for factor, variation in zip(found, variations.values(), strict=True)
            ]
            traces = study.traces("as the second", Variation(second, second.protocol())) if len(found) > 1 else None
            whole = (
                effects[0]
                if traces is None
                else effect("everything", ("the first", "the second"), before, _same_specs(before, traces))
            )
        effects = ranked(effects)
        output.mkdir(parents=True, exist_ok=True)
        shown = _pictures(study, base, variations, effects, output)
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
    console.facts(_lines(effects, whole))
    console.say(f"page, figures and pictures: {output / PAGE}")
    return effects


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


def _in_looks(
    study: _Study, base: Variation, variations: Mapping[str, Variation], found: Sequence[Factor], looks: int
) -> list[Effect]:
    """Perturb until each factor is decided or all episodes have run: one error rate for all factors and looks."""
    ends = sorted({-(-len(study.specs) * look // looks) for look in range(1, looks + 1)})
    plan = ComparisonPlan(looks=tuple(ends), level=LEVEL)
    signs, pairs = plan.signs(), [(factor.name, _BASE) for factor in found]
    traces: dict[str, list[Trace]] = {_BASE: [], **{factor.name: [] for factor in found}}
    while True:
        outcomes = {name: [trace.success for trace in rows] for name, rows in traces.items()}
        state = compare(outcomes, plan, signs, pairs)
        if not state.needed:
            break
        for name, count in state.needed.items():
            variation = base if name == _BASE else variations[name]
            traces[name] += study.traces(name, variation, slice(len(traces[name]), count))
    effects = []
    for factor, row in zip(found, state.comparisons, strict=True):
        before = traces[_BASE][: len(traces[factor.name])]
        item = effect(factor.name, factor.words(), before, _same_specs(before, traces[factor.name][: len(before)]))
        effects.append(dataclasses.replace(item, verdict=row.verdict))
    return effects


def _played(env: VecEnv, side: Side) -> VecEnv:
    return FlipGripper(env) if side.changes.flip_gripper else env


def _same_specs(first: Sequence[Trace], second: Sequence[Trace]) -> list[Trace]:
    """`second` under the specs of `first`: another evaluation seed gives the same states other seeds."""
    return [dataclasses.replace(two, spec=one.spec) for one, two in zip(first, second, strict=True)]


def _pictures(
    study: _Study, base: Variation, variations: Mapping[str, Variation], effects: Sequence[Effect], output: Path
) -> dict[str, str]:
    """A picture for each of the first factors that made commands part: the first side above, the second below."""
    shown = {}
    for number, item in enumerate(effects[:PICTURES], 1):
        if item.example is not None:
            rows = [study.picture(variation, item.example) for variation in (base, variations[item.factor])]
            name = f"{number}-{item.factor.replace(' ', '_')}-step{item.example[1]}.png"
            write_png(output / name, side_by_side(rows))
            shown[item.factor] = name
    return shown


def _lines(effects: Sequence[Effect], whole: Effect | None) -> list[str]:
    head = f"  {'factor':<18}{'success':<18}{'difference':<28}{'commands part':<30}from, to"
    lines = [head, *(_line(item) for item in effects)]
    lines += [
        f"  {item.factor}: {counted(item.not_measured, 'pair')} not measured, as the simulator broke"
        for item in effects
        if item.not_measured
    ]
    if whole is not None and len(effects) > 1:
        lines.append(_line(whole))
    if effects[0].verdict is None:
        return [*lines, f"  the same {effects[0].episodes} episodes each time; intervals are of one factor alone"]
    verdicts = [f"{item.factor} {item.verdict} ({counted(item.episodes, 'episode')})" for item in effects]
    return [*lines, f"  at level {LEVEL:g} for all together: {', '.join(verdicts)}"]


def _line(item: Effect) -> str:
    success = f"{item.success[0]:.0%} -> {item.success[1]:.0%}"
    difference = f"{item.difference:+.1%} ({item.low:+.1%} to {item.high:+.1%})"
    step = "never" if item.step is None else f"at step {item.step:.0f}, in {item.parted} of {item.episodes}"
    return f"  {item.factor:<18}{success:<18}{difference:<28}{step:<30}{item.first}, {item.second}"
