"""`embodied-rl doctor --policy PATH_OR_ID`: is this checkpoint read as it was trained, before hours go into it?

Five things go wrong silently: statistics of another data set, a gripper that opens when it should close, pictures that
the network was not trained on, log-probs that differ between rollout and update, and action ranges that do not fit.
Each is looked at in the files, in what the policy does from initial states, and in demonstrations where there are some.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from embodied_rl.config.suites import suite_named, usual_env
from embodied_rl.data.actions import MOST_BEYOND, share_beyond
from embodied_rl.errors import UserError
from embodied_rl.factory.backends import check_observes
from embodied_rl.factory.policies import family_named, load_policy, policy_folder
from embodied_rl.jobs.checks import CheckResult, DoctorConfig, judged
from embodied_rl.learner.config import LearnerConfig
from embodied_rl.policies.checkpoints.folder import read_provenance
from embodied_rl.policies.checkpoints.hub import resolve
from embodied_rl.policies.preprocessing.fit import fit_image
from embodied_rl.policy import ActMode, action_array
from embodied_rl.rng import DecisionRng
from embodied_rl.types import ActOutput, Array, EpisodeSpec, Observation

if TYPE_CHECKING:
    from embodied_rl.data.lerobot import Demonstrations
    from embodied_rl.factory.policies import AnyPolicy

_STATES, _FRAMES = 16, 64
_MOSTLY, _CLEARLY = 0.75, 0.9
_RANGE_ERROR = 0.1
"""Share of an action's range by which statistics may differ from the data set's."""
_ARM = slice(0, -1)


@dataclass(frozen=True)
class Case:
    """A policy, what it sees in the first moment of some episodes, and perhaps demonstrations of the same tasks."""

    policy: AnyPolicy
    folder: Path
    config: DoctorConfig
    seen: Observation
    data: Demonstrations | None = None


def check_policy(config: DoctorConfig) -> list[CheckResult]:
    """Everything that was found about the policy `config.policy`."""
    assert config.policy is not None
    try:
        folder = policy_folder(config.policy)
        policy = load_policy(folder, config.options_for(folder, config.kind))
        check_observes(policy, suite_named(config.suite), str(folder))
    except UserError as error:
        return [CheckResult("checkpoint", "problem", str(error), "see the line itself")]
    case = Case(policy, folder, config, _look(policy, config), _demonstrations(config, policy, folder))
    checks = (unnorm_key, gripper, images, first_update, statistics)
    return [checkpoint(policy, folder), *(result for check in checks for result in check(case))]


def checkpoint(policy: AnyPolicy, folder: Path) -> CheckResult:
    """The weights, which were loaded: so they are whole and finite."""
    count = sum(parameter.numel() for parameter in policy.parameters())
    return CheckResult("checkpoint", "ok", f"{policy.architecture}, {count / 1e6:.2f} M parameters, {folder}")


def unnorm_key(case: Case) -> Iterator[CheckResult]:
    """Whether the action statistics are those of the suite."""
    policy, suite = case.policy, case.config.suite
    known = policy.statistics_keys
    fitting = [key for key in known if key.startswith(suite)]
    found = f"'{policy.unnorm_key}' for suite {suite}"
    if policy.unnorm_key in fitting:
        yield CheckResult("unnorm key", "ok", found)
    elif fitting:
        yield CheckResult("unnorm key", "problem", f"{found}, which has its own", f"--unnorm-key {fitting[0]}")
    else:
        yield CheckResult(
            "unnorm key",
            "note",
            f"{found}; there are: {', '.join(known)}",
            "make sure that its actions are in this suite's units, or name its own with --suite",
        )


def gripper(case: Case) -> Iterator[CheckResult]:
    """Whether the gripper can open and close, and does neither at the wrong time."""
    low, high = (float(end[-1]) for end in case.policy.action_range)
    zero_one = case.policy.gripper_zero_one
    advice = "choose the statistics and the kind of policy that it was trained with"
    found = f"data from {low:.2f} to {high:.2f}, read as {'0 closed, 1 open' if zero_one else '-1 open, 1 closed'}"
    good = (low > -0.5) if zero_one else (low < -0.5)
    yield judged("gripper range", good, found, advice)
    closed = float((_greedy(case.policy, case.seen)[:, 0, -1] > 0).mean())
    found = f"closes at once in {closed:.0%} of {_STATES} first decisions"
    if closed > _MOSTLY:
        yield CheckResult("gripper sign", "problem", f"{found}, before the hand has moved", advice)
    elif closed > 1 - _MOSTLY:
        yield CheckResult("gripper sign", "note", found, "a trained policy opens first: is this one trained?")
    else:
        yield CheckResult("gripper sign", "ok", found)
    if case.data is not None:
        obs, taken = _frames(case.data)
        same = float(((_greedy(case.policy, obs)[:, 0, -1] > 0) == (taken[:, -1] > 0)).mean())
        state = "ok" if same >= _MOSTLY else "note" if same > 1 - _MOSTLY else "problem"
        yield CheckResult(
            "gripper in demonstrations",
            state,
            f"agrees in {same:.0%} of {len(taken)} frames",
            {"ok": "", "note": "is this policy trained on these tasks?", "problem": advice}[state],
        )


def images(case: Case) -> Iterator[CheckResult]:
    """Whether the pictures are made as the network knows them, and whether it looks at them."""
    from embodied_rl.jobs.evaluation_setup import policy_deviations
    from embodied_rl.policies.checkpoints.folder import read_json
    from embodied_rl.sim.libero.protocol import NATIVE, protocol

    chosen = protocol(case.config.protocol)
    published = family_named(case.policy).holds(read_json(case.folder / "config.json"))
    if chosen is NATIVE and published:
        yield CheckResult(
            "image pipeline",
            "note",
            "native frames go in as rendered; those who publish checkpoints train on mirrored, resized ones",
            "if others trained it: --protocol openvla, openvla_oft, simplevla, rlinf, openpi or lerobot",
        )
    elif differ := policy_deviations(chosen, case.policy):
        yield CheckResult("image pipeline", "problem", "; ".join(differ), "choose the protocol that it was trained for")
    else:
        yield CheckResult("image pipeline", "ok", f"protocol {chosen.name}, pipeline {chosen.images}")
    replay = _act(case.policy, case.seen, "greedy").replay
    dark = replace(case.seen, images=torch.zeros_like(case.seen.images))
    change = float((_log_prob(case.policy, case.seen, replay) - _log_prob(case.policy, dark, replay)).abs().max())
    yield judged(
        "image use",
        change > 1e-3,
        f"black images change a log-prob by {change:.2g}",
        "its vision weights are not those that it was trained with: restore the checkpoint",
    )
    if case.data is not None:
        yield _mirrored(case.policy, case.data)


def _mirrored(policy: AnyPolicy, data: Demonstrations) -> CheckResult:
    """Whether the policy repeats the demonstrations better from their pictures than from mirrored ones."""
    obs, taken = _frames(data)
    other = replace(obs, images=obs.images.flip(3))
    right, wrong = (float(np.abs(_greedy(policy, seen)[:, 0, _ARM] - taken[:, _ARM]).mean()) for seen in (obs, other))
    found = f"error of the first action {right:.3f}, from mirrored images {wrong:.3f}"
    if right <= wrong:
        return CheckResult("mirrored images", "ok", found)
    if wrong > _CLEARLY * right:
        return CheckResult("mirrored images", "note", found, "is this policy trained on these tasks?")
    return CheckResult(
        "mirrored images",
        "problem",
        found,
        "the images are the wrong way round: choose the protocol, or the data set, that it was trained with",
    )


def first_update(case: Case) -> Iterator[CheckResult]:
    """Whether probability ratios are 1 before anything was learned, as PPO and GRPO assume."""
    tolerance = LearnerConfig().ratio_tolerance
    drawn = _act(case.policy, case.seen, "sample")
    error = 0.0
    for part in (slice(0, 3), slice(3, None)):  # the update batches rows in another way than the rollout
        again = _log_prob(
            case.policy, case.seen.rows(part), {name: values[part] for name, values in drawn.replay.items()}
        )
        ratio = (again - drawn.log_prob[part].cpu()).exp()
        error = max(error, float((ratio - 1).abs().nan_to_num(torch.inf).max()))
    yield judged(
        "first update",
        error <= tolerance,
        f"ratios of recomputed to rollout probabilities are 1 within {error:.2g} (allowed: {tolerance})",
        "its logits are too large for its number format: train with --learner.recompute-old-log-probs, or restore the "
        "checkpoint",
    )


def statistics(case: Case) -> Iterator[CheckResult]:
    """Whether the action ranges are possible, and those of the data set."""
    low, high = case.policy.action_range
    yield judged(
        "action range",
        bool((low[_ARM] > -1.05).all() and (high[_ARM] < 1.05).all()),
        f"{low[_ARM].min():.2f} to {high[_ARM].max():.2f} of the simulator's -1 to 1",
        "what lies beyond is cut off: choose the statistics of a data set in the simulator's units",
    )
    if case.data is None:
        yield CheckResult(
            "action statistics", "note", "not compared with demonstrations", "--dataset DIR compares them"
        )
        return
    theirs = np.quantile(case.data.action, (0.01, 0.99), axis=0)
    if (low[_ARM] == -1).all() and (high[_ARM] == 1).all():
        beyond = float(share_beyond(case.data.action[:, _ARM]).max())
        found = f"actions are taken as they are; {beyond:.1%} of a dimension of the data set lie beyond -1 to 1"
        good = beyond <= MOST_BEYOND
    else:
        span = np.maximum(theirs[1] - theirs[0], 1e-3)
        each = (np.maximum(np.abs(low - theirs[0]), np.abs(high - theirs[1])) / span)[_ARM]
        worst = int(each.argmax())
        found = (
            f"dimension {worst} is {low[worst]:.3f} to {high[worst]:.3f}, in the data set "
            f"{theirs[0][worst]:.3f} to {theirs[1][worst]:.3f}"
        )
        good = each.max() <= _RANGE_ERROR
    advice = "choose another --unnorm-key, or name the data set that it was trained on"
    yield judged("action statistics", good, found, advice)


def _look(policy: AnyPolicy, config: DoctorConfig) -> Observation:
    """What the policy sees first from _STATES training states, spread over the suite's tasks."""
    from embodied_rl.factory.suites import load, open_tasks
    from embodied_rl.factory.view import view_of
    from embodied_rl.sim.libero.protocol import protocol

    envs = usual_env(config.suite, _STATES)
    tasks = load(config.suite, (), envs)
    names = list(tasks.train_states)[:_STATES]
    specs = []
    for row in range(_STATES):
        name = names[row % len(names)]
        specs.append(EpisodeSpec(row, name, tasks.train_states[name][row // len(names)], row))
    with open_tasks(tasks, envs, view_of(policy, protocol=protocol(config.protocol))) as env:
        env.reset(range(_STATES), specs)
        seen = env.new_observation(_STATES)
        env.observe(range(_STATES), seen)
    return seen


def _demonstrations(config: DoctorConfig, policy: AnyPolicy, folder: Path) -> Demonstrations | None:
    """The data set, with the cameras that the policy was trained on, where its provenance says so."""
    if config.dataset is None:
        return None
    from embodied_rl.data import lerobot
    from embodied_rl.data.frames import ImageFit

    fit = ImageFit(policy.config.image_size, partial(fit_image, how=policy.config.image_fit))
    data = lerobot.load(resolve(config.dataset, "dataset"), read_provenance(folder).get("cameras", ()), fit)
    shape = (policy.config.num_cameras, policy.config.image_size, policy.config.image_size, 3)
    wants = (shape, policy.action_dim, policy.config.proprio_dim)
    has = (data.images.shape[1:], data.action.shape[1], data.state.shape[1])
    if has != wants:
        raise UserError(
            f"--dataset {config.dataset} has images {has[0]}, actions of {has[1]} and states of {has[2]} numbers, the "
            f"policy takes {wants[0]}, {wants[1]} and {wants[2]}: name one that fits."
        )
    return data


def _frames(data: Demonstrations) -> tuple[Observation, Array]:
    """Frames from all over the data set, and the actions [rows, A] that were taken there."""
    rows = np.unique(np.linspace(0, len(data.images) - 1, _FRAMES).astype(np.int64))
    words = [data.instruction[row] for row in rows]
    return Observation.from_numpy(data.images[rows], data.state[rows], words), data.action[rows]


def _act(policy: AnyPolicy, obs: Observation, mode: ActMode) -> ActOutput:
    rows = np.arange(len(obs.instruction))
    out = policy.act(obs, DecisionRng(rows, np.zeros_like(rows)), mode)  # each an episode's first decision
    action_array(out.actions)  # comparisons with NaN would find nothing wrong
    return out


def _greedy(policy: AnyPolicy, obs: Observation) -> Array:
    return action_array(_act(policy, obs, "greedy").actions)


@torch.no_grad()
def _log_prob(policy: AnyPolicy, obs: Observation, replay: dict[str, torch.Tensor]) -> torch.Tensor:
    return policy.evaluate(obs.images, obs.proprio, obs.instruction, replay).log_prob.cpu()
