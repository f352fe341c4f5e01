"""One evaluation of a benchmark, from a checked command to its report. Imports torch and the simulator."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from embodied_rl.errors import UserError
from embodied_rl.evaluation.benchmark import BenchmarkReport, interleaved, run_missing, summarise
from embodied_rl.evaluation.overlap import Overlap, overlap, trained_states
from embodied_rl.evaluation.results_log import EpisodeResultsLog, Outcome
from embodied_rl.factory.backends import need_images
from embodied_rl.factory.envs import (
    cpu_count,
    cpu_name,
    describe_env_processes,
    describe_policy,
    open_policy,
    pick_device,
    pick_render_quality,
    pick_renderer,
    policy_folder,
    statistics_line,
)
from embodied_rl.factory.premises import failed_premises, judge
from embodied_rl.factory.protocol_envs import open_protocol_env
from embodied_rl.factory.tasks import describe_era, load_tasks, missing_assets
from embodied_rl.jobs.efficient_inference import make_efficient
from embodied_rl.jobs.eval_request import BenchmarkCommand, suite_name
from embodied_rl.jobs.failure_videos import record_failure_videos
from embodied_rl.jobs.fingerprint import fingerprint
from embodied_rl.policies.checkpoints.folder import read_provenance
from embodied_rl.policies.preprocessing.images import image_pipeline
from embodied_rl.rollout.sampler import evaluation_specs
from embodied_rl.sim.libero.protocol import Protocol, deviations, protocol
from embodied_rl.sim.perturb import Perturber, Variant, variant_spec
from embodied_rl.sim.wrappers.protocol_env import ProtocolEnv
from embodied_rl.telemetry.eval_report import EvalPage, rows_of, write_eval_page
from embodied_rl.telemetry.progress import RunProgress
from embodied_rl.telemetry.report import replace_text
from embodied_rl.telemetry.tables import cells, short_labels, success_table, without_reason
from embodied_rl.types import EpisodeResult, EpisodeSpec
from embodied_rl.utils.console import LastingConsole
from embodied_rl.utils.signals import Interrupted, StopRequest
from embodied_rl.utils.words import counted

if TYPE_CHECKING:
    from embodied_rl.factory.policies import AnyPolicy
    from embodied_rl.factory.tasks import SuiteTask


@dataclass(frozen=True, slots=True)
class _Plan:
    """What runs: episodes in the order of their ids, and how each is set up.

    variants: perturbed episodes, by id; premises: by task and evaluated state, what fails of what the task says.
    """

    command: BenchmarkCommand
    suite: str
    protocol: Protocol
    tasks: list[SuiteTask]
    specs: list[EpisodeSpec]
    variants: dict[int, Variant]
    premises: dict[str, dict[int, list[str]]]


def run(
    benchmark: str, command: BenchmarkCommand, request: Mapping[str, Any], words: str, *, keep: bool = True
) -> None:
    """Evaluate as `command` says, or what is left of it, and print the result.

    Args:
        command: its `output` is the folder of the evaluation.
        request: what the folder records, so that the evaluation can be resumed.
        words: the command line.
        keep: whether the folder stays; if not, it isn't mentioned.
    """
    console = LastingConsole()
    device = pick_device(command.device)
    checkpoint = policy_folder(command.checkpoint)
    policy = open_policy(command.checkpoint, device, command.load_options(checkpoint))
    need_images(policy, command.checkpoint)
    plan = _plan(benchmark, command, console)
    notes = policy_deviations(plan.protocol, policy)
    renderer = pick_renderer(command.env.renderer, plan.tasks, command.env.render_quality, command.env.simulator)
    efficient = make_efficient(policy, command.efficient, partial(_open, plan, policy, renderer.name), plan.specs)
    weights = describe_policy(policy, command.checkpoint) | {
        "unnorm key": statistics_line(policy, plan.suite),
        "efficient": efficient.describe,
    }
    frames = pick_render_quality(command.env.render_quality, plan.tasks)
    marks = fingerprint(
        plan.tasks,
        command.env.simulator,
        renderer.name,
        frames,
        device,
        weights["weights"].rpartition(" ")[2],
        efficient.marks,
    )
    provenance = read_provenance(checkpoint)
    seen = overlap(trained_states(provenance), plan.specs)
    era = describe_era(plan.tasks, provenance.get("era"))
    drawn = f"{renderer.name} ({renderer.reason}), {frames} frames"
    stamp = _run_info(plan, words, drawn, device, weights | {"era": era}, notes, seen)
    folder = Path(command.output)
    with EpisodeResultsLog.open(folder, request, marks) as ledger:
        for line in _head(stamp, keep):
            console.say(line)
        with _open(plan, policy, renderer.name) as env:
            _run_episodes(plan, env, policy, ledger, console)
            report = summarise(ledger.outcomes.values(), seen.seen)
            films = record_failure_videos(env, policy, report, command.mode, folder, command.videos)
        _write(folder, command, stamp if keep else stamp | {"output": None}, marks, plan, seen, report, films)
    console.print(_table(report, plan.premises))
    if keep:
        console.say(f"report: {folder / 'report.html'}")


def _head(stamp: Mapping[str, Any], keep: bool) -> list[str]:
    """What a reader must know of what runs; report.json has it all."""
    rows = {
        "suite": stamp["suite"],
        "policy": f"{stamp['policy']}; {stamp['weights']}",
        "protocol": stamp["protocol"] + ("" if stamp["deviations"] == "none" else f", but {stamp['deviations']}"),
        "simulator": f"{stamp['worlds']}; {without_reason(stamp['renderer'])}",
        "device": stamp["device"],
        "overlap": stamp["overlap"],
        **{name: stamp[name] for name in _UNUSUAL if stamp[name] not in _USUAL},
        **({"output": stamp["output"]} if keep else {}),
    }
    return [f"  {name:<10}{value}" for name, value in rows.items()]


_UNUSUAL = ("era", "premises", "assets", "perturbed", "efficient")
_USUAL = ("current", "exact", "no", "not judged", "hold in every state", "as trained, nothing left out")


def _plan(benchmark: str, command: BenchmarkCommand, console: LastingConsole) -> _Plan:
    suite = suite_name(benchmark, command.suite)
    tasks, found = judge(load_tasks(suite, command.tasks, command.env.scene_era), console)
    states = {task.name: _states(task, command) for task in tasks}
    specs = evaluation_specs(states, command.seed)
    failed = failed_premises({} if "object" in command.perturb else found, states)
    variants: dict[int, Variant] = {}
    if command.perturb:
        perturber = Perturber(tasks, command.perturb, command.perturb_level)
        variants = {spec.episode_id: perturber.variant(spec) for spec in specs}
    return _Plan(command, suite, protocol(command.protocol), tasks, specs, variants, failed)


def _states(task: SuiteTask, command: BenchmarkCommand) -> list[int]:
    rows = list(task.heldout_states if command.states == "heldout" else task.train_states)
    count = command.states_per_task or len(rows)
    if not rows or count > len(rows):
        raise UserError(f"--states {command.states}: '{task.name}' has {len(rows)} such states; ask for fewer.")
    return rows[:count]


def _open(plan: _Plan, policy: AnyPolicy, renderer: str) -> AbstractContextManager[ProtocolEnv]:
    """The worlds as the protocol and the policy want them."""
    config = policy.config
    return open_protocol_env(
        [variant.task for variant in plan.variants.values()] if plan.variants else plan.tasks,
        dataclasses.replace(plan.command.env, renderer=renderer),
        plan.protocol,
        config.image_size,
        config.num_cameras,
        crop=policy.center_crop is None,
        run_on=plan.command.at_end,
        translate=variant_spec if plan.variants else None,
        device=policy.device.type,
    )


def _run_episodes(
    plan: _Plan, env: ProtocolEnv, policy: AnyPolicy, ledger: EpisodeResultsLog, console: Console
) -> None:
    command, total = plan.command, len(plan.specs)
    done = len(ledger.outcomes)

    def outcome_of(result: EpisodeResult) -> Outcome:
        number = result.spec.episode_id
        perturbation = plan.variants[number].drawn if plan.variants else {}
        return Outcome(result, env.at_end(number) if command.at_end else None, perturbation)

    with RunProgress(0, console=console) as progress:
        if done:
            progress.message(f"{done} of {total} episodes are done already")
        progress.stage("evaluate", total - done)
        stop = StopRequest(lambda: progress.message("stopping after this decision (again: leave at once)"))
        try:
            with stop:
                run_missing(
                    env,
                    policy,
                    interleaved(plan.specs),
                    command.mode,
                    ledger,
                    outcome_of=outcome_of,
                    on_episode=lambda result: progress.episode(result.success),
                    on_round=stop.check_interrupt,
                )
        except Interrupted:
            raise Interrupted(
                f"{len(ledger.outcomes)} of {total} episodes are saved; continue with: "
                + shlex.join(["embodied-rl", "eval", "--resume", str(ledger.folder)])
            ) from None


def _run_info(
    plan: _Plan, words: str, reason: str, device: str, weights: Mapping[str, Any], notes: Sequence[str], seen: Overlap
) -> dict[str, Any]:
    """What really runs, in words."""
    command, env = plan.command, plan.command.env
    count = len({(spec.task, spec.init_state) for spec in plan.specs}) // len(plan.tasks)
    missing = missing_assets(plan.tasks)
    return {
        "command": words,
        "suite": f"{plan.suite}, {counted(len(plan.tasks), 'task')}, "
        f"{count} {command.states} {'state' if count == 1 else 'states'} each",
        "protocol": plan.protocol.name,
        "deviations": "; ".join(notes) or "none",
        "perturbed": f"{', '.join(command.perturb)} at level {command.perturb_level:g}" if command.perturb else "no",
        "assets": f"APPROXIMATE: {len(missing)} official files are stand-ins" if missing else "exact",
        "overlap": seen.describe(),
        "premises": _describe_premises(plan),
        "success": "once and at end" if command.at_end else "once (episodes end at success)",
        "worlds": f"{env.simulator} physics, {counted(env.num_envs, 'world')}, {describe_env_processes(env)}",
        "renderer": reason,
        "device": device,
        **weights,
        "mode": command.mode,
        "seed": command.seed,
        "machine": f"{cpu_name()}, {counted(cpu_count(), 'core')}",
        "output": command.output,
    }


def _describe_premises(plan: _Plan) -> str:
    if not plan.premises:
        return "not judged"
    failed = [len(rows) for rows in plan.premises.values()]
    if not any(failed):
        return "hold in every state"
    total = len({(spec.task, spec.init_state) for spec in plan.specs})
    tasks = counted(sum(map(bool, failed)), "task")
    return f"FAIL in {sum(failed)} of {total} initial states, of {tasks} (see the report)"


def policy_deviations(chosen: Protocol, policy: AnyPolicy) -> list[str]:
    """Where `policy` is not one of the protocol's own: one line each."""
    config = policy.config
    own, area = policy.center_crop, image_pipeline(chosen.images).crop_area
    crop = [] if own in (None, area) else [f"centre crop: {own} of the area (the protocol: {area or 'none'})"]
    return crop + deviations(
        chosen,
        size=config.image_size,
        cameras=config.num_cameras,
        proprio=policy.uses_proprio,
        gripper="zero_one" if policy.gripper_zero_one else "direct",
        steps_per_decision=policy.chunk_len,
    )


def _write(
    folder: Path,
    command: BenchmarkCommand,
    stamp: Mapping[str, Any],
    marks: Mapping[str, Any],
    plan: _Plan,
    seen: Overlap,
    report: BenchmarkReport,
    films: Sequence[Any],
) -> None:
    """report.json and report.html in the folder, and the figures where --json says."""
    figures = {
        **stamp,
        "protocol": plan.protocol.describe(),
        "perturb": list(command.perturb),
        "perturb_level": command.perturb_level,
        "fingerprint": marks,
        "overlap": seen.to_json(),
        "failed_premises": plan.premises,
        **report.to_json(),
    }
    text = json.dumps(figures, indent=1)
    replace_text(folder / "report.json", text)
    if command.json:
        command.json.write_text(text, encoding="utf-8")
    facts = {
        "Protocol": plan.protocol.describe(),
        "Fingerprint": {k: v for k, v in marks.items() if k != "bundles"} | marks["bundles"],
    }
    title = f"{plan.suite}, protocol {plan.protocol.name}" + (", perturbed" if command.perturb else "")
    write_eval_page(folder / "report.html", EvalPage(title, stamp, report, facts, films, plan.premises))


def _table(report: BenchmarkReport, premises: Mapping[str, Mapping[int, Sequence[str]]]) -> Table:
    tasks = list(report.tasks)
    names = dict(zip(tasks, short_labels(tasks), strict=True))
    measured, failing = report.overall.at_end is not None, any(premises.values())
    heads = (
        "task",
        "success once",
        *(["success at end"] if measured else []),
        "steps",
        *(["premise fails in"] if failing else []),
    )
    rows = []
    for label, tally in rows_of(report):
        values = [cells(tally.once), *([cells(tally.at_end)] if measured else []), (f"{tally.once.mean_steps:.0f}", "")]
        if failing:
            values.append((counted(count, "state") if (count := len(premises.get(label, ()))) else "", ""))
        rows.append((names.get(label, label), values))
    return success_table(heads, rows)
