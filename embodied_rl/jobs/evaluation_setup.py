"""What an evaluation stands on: its episodes, the policy, the worlds, and the marks that a score depends on."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from rich.console import Console

from embodied_rl.config.earlier import current_env
from embodied_rl.config.env import AUTO, POTENTIALS, EnvPoolConfig, SceneConfig, scenes
from embodied_rl.config.suites import suite_named
from embodied_rl.errors import UserError
from embodied_rl.evaluation.actions import ActionRecorder, smoothness
from embodied_rl.evaluation.benchmark import interleaved, run_missing
from embodied_rl.evaluation.overlap import Overlap, overlap, trained_states
from embodied_rl.evaluation.results_log import EpisodeOutcome, EpisodeResultsLog
from embodied_rl.factory.backends import check_fits, check_observes, check_told_apart, observes
from embodied_rl.factory.libero_plus import PlusPlan, make_plus_plan
from embodied_rl.factory.made_for import as_learned, learned_in, need_as_learned, need_control_rate
from embodied_rl.factory.policies import open_policy, policy_folder, policy_info
from embodied_rl.factory.premises import failed_premises
from embodied_rl.factory.scenes import pick_renderer
from embodied_rl.factory.suite_env import SuiteEnv
from embodied_rl.factory.suites import Tasks, asked, load, open_tasks
from embodied_rl.factory.view import view_of
from embodied_rl.jobs.efficient_inference import make_efficient
from embodied_rl.jobs.eval_request import BenchmarkCommand, suite_name
from embodied_rl.jobs.evaluation_plus import check_plus
from embodied_rl.jobs.fingerprint import fingerprint
from embodied_rl.jobs.kept_episodes import KeptEpisodes
from embodied_rl.policies.checkpoints.folder import read_provenance
from embodied_rl.policies.preprocessing.images import image_pipeline
from embodied_rl.rollout.sampler import evaluation_specs
from embodied_rl.sim.eras import CURRENT
from embodied_rl.sim.libero.protocol import Protocol, deviations, protocol
from embodied_rl.sim.mujoco.robot import PANDA
from embodied_rl.sim.perturb import Perturber, Variant, variant_spec
from embodied_rl.telemetry.info import EfficientInfo, PolicyInfo
from embodied_rl.types import EpisodeResult, EpisodeSpec
from embodied_rl.utils.machine import pick_device
from embodied_rl.utils.plugins import import_modules
from embodied_rl.utils.suites import LIBERO_PLUS

if TYPE_CHECKING:
    from embodied_rl.factory.policies import AnyPolicy
    from embodied_rl.factory.tasks import SuiteTask
    from embodied_rl.sim.render import Choice


@dataclass(frozen=True, slots=True)
class EvaluationPlan:
    """What runs: episodes in the order of their ids, and how each is set up.

    command: with what its checkpoint was trained under where nothing else is asked for.
    variants: perturbed episodes, by id; premises: by task and evaluated state, what fails of what the task says.
    plus: LIBERO-plus' tasks, where these run; its variants are among `variants`, and so are the unperturbed tasks.
    """

    command: BenchmarkCommand
    suite: str
    protocol: Protocol
    tasks: Tasks
    specs: list[EpisodeSpec]
    variants: dict[int, Variant]
    premises: dict[str, dict[int, list[str]]]
    plus: PlusPlan | None = None


@dataclass(frozen=True, slots=True)
class Evaluated:
    """A policy that is ready to be evaluated.

    drawn: what draws scenes and why, None for other tasks. device: 'cpu' or 'cuda'. info: what the policy is.
    efficient: what it leaves out. provenance: what its checkpoint says of itself. notes: where it is not one of the
    protocol's own, or the scenes not those of published scores. marks: what its score depends on. seen: overlap with
    training.
    """

    policy: AnyPolicy
    drawn: Choice | None
    device: str
    info: PolicyInfo
    efficient: EfficientInfo | None
    provenance: Mapping[str, Any]
    notes: list[str]
    marks: dict[str, Any]
    seen: Overlap

    @property
    def renderer(self) -> str:
        """What draws scenes, '' for other tasks."""
        return "" if self.drawn is None else self.drawn.name


def make_plan(benchmark: str, command: BenchmarkCommand, console: Console) -> EvaluationPlan:
    """The episodes that `command` asks for; UserError for tasks or states that are not there."""
    import_modules(command.imports)
    suite = suite_name(benchmark, command.suite)
    command = _as_trained(command, suite)
    tasks, found = asked(load(suite, command.tasks, command.env), command.env).judged(console)
    if LIBERO_PLUS in command.perturb:
        check_plus(command, suite, protocol(command.protocol))
        official = command.plus_instruction == "official"
        plus = make_plus_plan(tasks.scenes, suite, seed=command.seed, count=command.plus_tasks, official_words=official)
        failed = failed_premises(found, {name: [0] for name in tasks.heldout_states})
        return EvaluationPlan(
            command, suite, protocol(command.protocol), tasks, plus.specs, plus.variants, failed, plus
        )
    all_states = tasks.heldout_states if command.states == "heldout" else tasks.train_states
    states = {name: _first(name, rows, command) for name, rows in all_states.items()}
    specs = evaluation_specs(states, command.seed)
    failed = failed_premises({} if "object" in command.perturb else found, states)
    variants: dict[int, Variant] = {}
    if command.perturb:
        if not tasks.scenes:
            raise UserError(f"--perturb does not apply to suite '{suite}', whose tasks are as they are: leave it out.")
        perturber = Perturber(tasks.scenes, command.perturb, command.perturb_level)
        variants = {spec.episode_id: perturber.variant(spec) for spec in specs}
    return EvaluationPlan(command, suite, protocol(command.protocol), tasks, specs, variants, failed)


def _as_trained(command: BenchmarkCommand, suite: str) -> BenchmarkCommand:
    """`command` with the tasks, the controller, the view and the reward mode of the training, where it names none.

    Of suites that are too large to be run whole, or of one task; the discount is the training's where the reward is.

    Raises:
        UserError: The command names another controller than the checkpoint learned with.
    """
    table = suite_named(suite)
    if not (table.example or table.task):
        return command
    provenance = read_provenance(policy_folder(command.checkpoint))
    tasks = command.tasks or tuple(learned_in(provenance, suite).get("tasks", ()))
    env = as_learned(command.env, tasks, command.checkpoint, suite, command.unnorm_key)
    if provenance.get("suite") != suite:
        return dataclasses.replace(command, env=env)
    before = current_env(provenance.get("config", {}).get("env", {}), suite, "provenance")
    kept = {"reward_mode": before["reward_mode"]} if "reward_mode" in before and hasattr(env, "reward_mode") else {}
    if isinstance(env, EnvPoolConfig) and env.reward_mode in POTENTIALS:
        kept["reward_gamma"] = before.get("reward_gamma")
    missing = {name: value for name, value in kept.items() if getattr(env, name) in (AUTO, None)}
    return dataclasses.replace(command, tasks=tasks, env=dataclasses.replace(env, **missing))


def prepare(plan: EvaluationPlan, command: BenchmarkCommand) -> Evaluated:
    """Load the policy of `command` for the episodes of `plan`; UserError where it does not fit them."""
    device, env, scenes = pick_device(command.device), plan.command.env, plan.tasks.scenes
    folder = policy_folder(command.checkpoint)
    provenance = read_provenance(folder)
    policy = open_policy(command.checkpoint, device, command.load_options(folder))
    check_observes(policy, plan.tasks.suite, command.checkpoint)
    check_told_apart(policy.architecture, plan.tasks.names)
    if scenes:
        need_control_rate(provenance, PANDA.control_hz, command.checkpoint, command.unnorm_key)
    drawn = pick_renderer(env, scenes) if isinstance(env, SceneConfig) else None
    name = "" if drawn is None else drawn.name
    efficient = make_efficient(policy, command.efficient, partial(evaluation_env, plan, policy, name), plan.specs)
    info = policy_info(policy, command.checkpoint)
    assert info.digest is not None, "it was read from files"
    marks = fingerprint(plan.tasks, env, name, device, info.digest, efficient)
    marks |= {} if plan.plus is None else {LIBERO_PLUS: plan.plus.digest}
    notes = list[str]()
    if drawn is not None:
        notes = policy_deviations(plan.protocol, policy) if observes(policy) == "images" else []
        notes += scene_deviations(scenes, marks["render_quality"])
    seen = overlap(trained_states(provenance), plan.specs)
    return Evaluated(policy, drawn, device, info, efficient, provenance, notes, marks, seen)


def evaluation_env(plan: EvaluationPlan, policy: AnyPolicy, renderer: str) -> SuiteEnv:
    """The envs as the protocol and the policy want them. renderer: of `Evaluated`.

    Raises:
        UserError: They do not show what the policy looks at, or take actions at another rate than it learned.
    """
    tasks, env = plan.tasks, plan.command.env
    if plan.variants:
        tasks = dataclasses.replace(tasks, scenes=tuple(variant.task for variant in plan.variants.values()))
    if renderer:
        env = dataclasses.replace(scenes(env), renderer=renderer)
    run_on, translate = plan.command.at_end, variant_spec if plan.variants else None
    sensor = None if plan.plus is None else plan.plus.degrade
    view = view_of(policy, protocol=plan.protocol, judged=True, run_on=run_on, translate=translate, sensor=sensor)
    opened = open_tasks(tasks, env, view)
    try:
        checkpoint, key = plan.command.checkpoint, getattr(policy, "unnorm_key", None)
        check_fits(policy, opened.info, checkpoint)
        need_as_learned(read_provenance(policy_folder(checkpoint)), env, opened.info, checkpoint, key)
    except UserError:
        opened.close()
        raise
    return opened


def run_episodes(
    plan: EvaluationPlan,
    env: SuiteEnv,
    policy: AnyPolicy,
    specs: Sequence[EpisodeSpec],
    ledger: EpisodeResultsLog,
    *,
    on_episode: Callable[[EpisodeResult], None],
    on_round: Callable[[], None],
) -> None:
    """Run those of `specs` that `ledger` lacks, with what they commanded; arguments as those of `run_missing`.

    With --keep each episode is stored in the ledger's folder before it counts as finished.
    """
    command = plan.command
    kept = KeptEpisodes(env, policy, ledger.folder) if command.keep else None
    frames = env if kept is None else kept.env
    # of a hand's translations, which the actions of other suites are not
    recorder = ActionRecorder(frames) if plan.tasks.scenes else None

    def outcome_of(result: EpisodeResult) -> EpisodeOutcome:
        number = result.spec.episode_id
        if kept is not None:
            kept.add(result)
        perturbation = plan.variants[number].drawn if plan.variants else {}
        at_end = env.at_end(number) if command.at_end else None
        motion = {} if recorder is None else smoothness(recorder.take(number))
        return EpisodeOutcome(result, at_end, perturbation, motion)

    run_missing(
        recorder or frames,
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
        lines.append("physics version current: this MuJoCo's own contacts and textures, not those of published scores")
    return lines


def _first(task: str, rows: Sequence[int], command: BenchmarkCommand) -> list[int]:
    count = command.states_per_task or len(rows)
    if not rows or count > len(rows):
        raise UserError(f"--states {command.states}: '{task}' has {len(rows)} such states; ask for fewer.")
    return list(rows)[:count]
