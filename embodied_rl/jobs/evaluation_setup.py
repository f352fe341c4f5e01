"""What an evaluation stands on: its episodes, the policy, the worlds, and the marks that a score depends on."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from rich.console import Console

from embodied_rl.errors import UserError
from embodied_rl.evaluation.actions import ActionRecorder, smoothness
from embodied_rl.evaluation.benchmark import interleaved, run_missing
from embodied_rl.evaluation.overlap import Overlap, overlap, trained_states
from embodied_rl.evaluation.results_log import EpisodeResultsLog, Outcome
from embodied_rl.factory.backends import need_images
from embodied_rl.factory.envs import pick_render_quality, pick_renderer
from embodied_rl.factory.made_for import need_control_rate
from embodied_rl.factory.policies import describe_policy, open_policy, policy_folder, statistics_line
from embodied_rl.factory.premises import failed_premises, judge
from embodied_rl.factory.protocol_envs import open_protocol_env
from embodied_rl.factory.tasks import describe_era, load_tasks
from embodied_rl.jobs.efficient_inference import make_efficient
from embodied_rl.jobs.eval_request import BenchmarkCommand, suite_name
from embodied_rl.jobs.fingerprint import fingerprint
from embodied_rl.policies.checkpoints.folder import read_provenance
from embodied_rl.policies.preprocessing.images import image_pipeline
from embodied_rl.rollout.sampler import evaluation_specs
from embodied_rl.sim.eras import CURRENT
from embodied_rl.sim.libero.protocol import Protocol, deviations, protocol
from embodied_rl.sim.mujoco.vec_env import CONTROL_HZ
from embodied_rl.sim.perturb import Perturber, Variant, variant_spec
from embodied_rl.sim.wrappers.protocol_env import ProtocolEnv
from embodied_rl.types import EpisodeResult, EpisodeSpec
from embodied_rl.utils.machine import pick_device
from embodied_rl.utils.words import counted

if TYPE_CHECKING:
    from embodied_rl.factory.policies import AnyPolicy
    from embodied_rl.factory.tasks import SuiteTask

UNKNOWN_SUITE = "not recorded"
"""What a checkpoint that does not say its suite was trained on."""


@dataclass(frozen=True, slots=True)
class EvaluationPlan:
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


@dataclass(frozen=True, slots=True)
class Evaluated:
    """A policy that is ready to be evaluated.

    renderer: what draws; drawn: that in words. device: 'cpu' or 'cuda'. weights: what a report says of the policy.
    notes: where it is not one of the protocol's own, or the scenes not those of published scores. marks: what its score
    depends on. seen: overlap with training.
    """

    policy: AnyPolicy
    renderer: str
    drawn: str
    device: str
    weights: dict[str, Any]
    notes: list[str]
    marks: dict[str, Any]
    seen: Overlap


def make_plan(benchmark: str, command: BenchmarkCommand, console: Console) -> EvaluationPlan:
    """The episodes that `command` asks for; UserError for tasks or states that are not there."""
    suite = suite_name(benchmark, command.suite)
    tasks, found = judge(load_tasks(suite, command.tasks, command.env.scene_era), console)
    states = {task.name: _states(task, command) for task in tasks}
    specs = evaluation_specs(states, command.seed)
    failed = failed_premises({} if "object" in command.perturb else found, states)
    variants: dict[int, Variant] = {}
    if command.perturb:
        perturber = Perturber(tasks, command.perturb, command.perturb_level)
        variants = {spec.episode_id: perturber.variant(spec) for spec in specs}
    return EvaluationPlan(command, suite, protocol(command.protocol), tasks, specs, variants, failed)


def prepare(plan: EvaluationPlan, command: BenchmarkCommand) -> Evaluated:
    """Load the policy of `command` for the episodes of `plan`; UserError where it does not fit them."""
    device = pick_device(command.device)
    folder = policy_folder(command.checkpoint)
    provenance = read_provenance(folder)
    need_control_rate(provenance, CONTROL_HZ, command.checkpoint)
    policy = open_policy(command.checkpoint, device, command.load_options(folder))
    need_images(policy, command.checkpoint)
    env = command.env
    renderer = pick_renderer(env.renderer, plan.tasks, env.render_quality, env.simulator)
    efficient = make_efficient(
        policy, command.efficient, partial(open_evaluation_env, plan, policy, renderer.name), plan.specs
    )
    weights = describe_policy(policy, command.checkpoint) | {
        "unnorm key": statistics_line(policy, plan.suite),
        "efficient": efficient.describe,
        "era": describe_era(plan.tasks, provenance.get("era")),
        "trained on": provenance.get("suite") or UNKNOWN_SUITE,
    }
    frames = pick_render_quality(env.render_quality, plan.tasks)
    digest = weights["weights"].rpartition(" ")[2]
    marks = fingerprint(plan.tasks, env.simulator, renderer.name, frames, device, digest, efficient.marks)
    return Evaluated(
        policy,
        renderer.name,
        f"{renderer.name} ({renderer.reason}), {frames} frames",
        device,
        weights,
        policy_deviations(plan.protocol, policy) + scene_deviations(plan.tasks, frames),
        marks,
        overlap(trained_states(provenance), plan.specs),
    )


def open_evaluation_env(plan: EvaluationPlan, policy: AnyPolicy, renderer: str) -> AbstractContextManager[ProtocolEnv]:
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


def run_episodes(
    plan: EvaluationPlan,
    env: ProtocolEnv,
    policy: AnyPolicy,
    specs: Sequence[EpisodeSpec],
    ledger: EpisodeResultsLog,
    *,
    on_episode: Callable[[EpisodeResult], None],
    on_round: Callable[[], None],
) -> None:
    """Run those of `specs` that `ledger` lacks, with what they commanded; arguments as those of `run_missing`."""
    command, recorder = plan.command, ActionRecorder(env)

    def outcome_of(result: EpisodeResult) -> Outcome:
        number = result.spec.episode_id
        perturbation = plan.variants[number].drawn if plan.variants else {}
        at_end = env.at_end(number) if command.at_end else None
        return Outcome(result, at_end, perturbation, smoothness(recorder.take(number)))

    run_missing(
        recorder,
        policy,
        interleaved(specs),
        command.mode,
        ledger,
        outcome_of=outcome_of,
        on_episode=on_episode,
        on_round=on_round,
    )


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


def scene_deviations(tasks: Sequence[SuiteTask], frames: str) -> list[str]:
    """Where LIBERO's scenes are not those of published scores: one line each; none for the built-in suites.

    frames: what `pick_render_quality` chose.
    """
    official = [task for task in tasks if task.is_official]
    lines = ["fast frames: close to the official ones, not equal"] if official and frames == "fast" else []
    if any(task.era == CURRENT for task in official):
        lines.append("era current: this MuJoCo's own contacts and textures, not those of published scores")
    return lines


def describe_premises(premises: Mapping[str, Mapping[int, Sequence[str]]], specs: Sequence[EpisodeSpec]) -> str:
    """In how many of the evaluated states what the task says does not hold."""
    if not premises:
        return "not judged"
    failed = [len(rows) for rows in premises.values()]
    if not any(failed):
        return "hold in every state"
    total = len({(spec.task, spec.init_state) for spec in specs})
    tasks = counted(sum(map(bool, failed)), "task")
    return f"FAIL in {sum(failed)} of {total} initial states, of {tasks} (see the report)"


def _states(task: SuiteTask, command: BenchmarkCommand) -> list[int]:
    rows = list(task.heldout_states if command.states == "heldout" else task.train_states)
    count = command.states_per_task or len(rows)
    if not rows or count > len(rows):
        raise UserError(f"--states {command.states}: '{task.name}' has {len(rows)} such states; ask for fewer.")
    return rows[:count]
