"""What a run that learns from demonstrations is refused: by --algorithm imitate or steer, or by an imitation term."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from embodied_rl.algorithms.config import AlgorithmConfig, ImitateConfig, SteerConfig
from embodied_rl.config.policies import PolicyConfig
from embodied_rl.config.sft import weighted_data
from embodied_rl.config.suites import Suite
from embodied_rl.errors import UserError
from embodied_rl.learner.config import LearnerConfig
from embodied_rl.rollout.config import RolloutConfig
from embodied_rl.scheduler.config import SchedulerConfig, SerialConfig

_UNUSED = (
    "value_lr",
    "lr_warmup_updates",
    "lr_decay_updates",
    "minibatch_groups",
    "row_share",
    "ratio_tolerance",
    "recompute_old_log_probs",
    "fsdp",
    "num_processes",
)
"""Options of the learner that say nothing where nothing is reinforced."""

Rule = Literal["late", "share", "detector"]
USUAL_RULE: tuple[Rule, int, float] = ("late", 80, 0.5)
"""--people-rule, --people-after and --people-share unless they are given."""


def refuse_weights(option: str, names: Sequence[str], algorithm: AlgorithmConfig) -> None:
    """UserError for names of data sets that are none, or that have a weight where a critic would know nothing of it."""
    weighted = [name for name, weight in weighted_data(names) if weight != 1.0]
    if weighted and isinstance(algorithm, SteerConfig):
        raise UserError(f"{option}: the critic of --algorithm steer takes no weights: write {weighted[0]} without.")


def check_demos(demos: tuple[str, ...], algorithm: AlgorithmConfig) -> None:
    """UserError for demonstrations that nothing imitates, or an imitation term without any."""
    refuse_weights("--demos", demos, algorithm)
    if isinstance(algorithm, ImitateConfig):
        return
    if demos and not algorithm.demo_coef:
        raise UserError(
            "--demos are imitated by --algorithm.demo-coef: give its weight too, such as 1, or --algorithm imitate "
            "or steer."
        )
    if algorithm.demo_coef and not demos:
        raise UserError("--algorithm.demo-coef imitates demonstrations: name them with --demos DATA.")


def need_demos(demos: tuple[str, ...], algorithm: AlgorithmConfig) -> None:
    """UserError where --algorithm imitate or steer is told of no demonstrations: a recipe names none."""
    if isinstance(algorithm, ImitateConfig) and not demos:
        raise UserError(f"--algorithm {algorithm.kind} learns from demonstrations too: name them with --demos DATA.")


def check_imitate(
    algorithm: ImitateConfig,
    learner: LearnerConfig,
    rollout: RolloutConfig,
    scheduler: SchedulerConfig,
    policy: PolicyConfig,
    autotune: bool,
) -> None:
    """UserError for what does nothing or can't be with `algorithm`."""
    kind, steers = algorithm.kind, isinstance(algorithm, SteerConfig)
    if not isinstance(scheduler, SerialConfig):
        raise UserError(f"--algorithm {kind} runs a round, stores it and learns, in turn: leave --scheduler out.")
    usual = LearnerConfig()
    for name in _UNUSED:
        if getattr(learner, name) != getattr(usual, name):
            raise UserError(f"--learner.{name.replace('_', '-')} does not apply to --algorithm {kind}: leave it out.")
    for given, asked in (
        ("--rollout.sampler adaptive", rollout.sampler != "uniform"),
        ("--autotune", autotune),
        ("--policy.prefix-cache-gib", getattr(policy, "prefix_cache_gib", 0.0) > 0),
        ("--policy.compile", steers and getattr(policy, "compile", False)),
        ("--learner.average-updates", steers and learner.average_updates > 0),
    ):
        if asked:
            raise UserError(f"{given} does not apply to --algorithm {kind}: leave it out.")


def check_people(people: str, rule: tuple[str, int, float], detector: str, algorithm: AlgorithmConfig) -> None:
    """UserError for a person who helps an algorithm that learns nothing of it, or for a rule that does not apply.

    rule: --people-rule, --people-after, --people-share. detector: --people-detector.
    """
    kind, after, share = rule
    if people != "none" and not isinstance(algorithm, ImitateConfig):
        raise UserError(
            "--people is for --algorithm imitate and steer, which learn from what a person did: leave it out."
        )
    if people == "none" and rule != USUAL_RULE:
        raise UserError("--people-rule, --people-after and --people-share go with --people expert.")
    if kind != "share" and share != USUAL_RULE[2]:
        raise UserError("--people-share goes with --people-rule share.")
    if (kind == "detector") != bool(detector):
        raise UserError("--people-rule detector and --people-detector FILE go together: embodied-rl watch makes one.")
    if kind == "detector" and after != USUAL_RULE[1]:
        raise UserError("--people-after does not apply to --people-rule detector: leave it out.")
    if after < 1:
        raise UserError(f"--people-after must be at least 1, got {after}.")
    if not 0 < share <= 1:
        raise UserError(f"--people-share must lie above 0 and at most at 1, got {share:g}.")


def check_fresh_states(suite: Suite | None, algorithm: AlgorithmConfig, train_states: str) -> None:
    """UserError where initial states of training are to be drawn, and can't be."""
    if train_states != "fresh":
        return
    if not isinstance(algorithm, ImitateConfig):
        raise UserError("--train-states fresh is for --algorithm imitate and steer: leave it out.")
    if suite is None or not suite.draws_states:
        name = "a simulator of your own" if suite is None else f"suite '{suite.name}'"
        raise UserError(f"--train-states fresh: {name} has no fresh initial states; leave it out.")
