"""Flow policies: what computing an observation's prefix once saves, in acting and in the update.

The network has pi0's layout and token counts (two cameras of 256 patches, a prompt, a horizon of 50) at small widths.
    act     10 denoising steps of one decision: over one prefix, or computing the prefix for each step
    update  log-probs and gradients of the 4 recorded steps of a decision: over one prefix in one pass, or step by step,
            each with its own prefix, as trainers do that recompute it per sample
    frozen update  the one recorded step of Flow-SDE with the language model frozen: over prefixes kept from the
            rollout (--policy.prefix-cache-gib), or computed again, as every epoch does without
Both ways must give the same actions and the same gradients. Times are CPU times of one thread, so that other work on
the machine disturbs them little; contenders are interleaved and medians shown.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from rich.table import Table
from torch import Tensor

from embodied_rl.benchmarks.timing import interleaved
from embodied_rl.policies.flow import FlowSettings, Transition, draw_noise, sample_path
from embodied_rl.policies.pi0.config import nano, tiny
from embodied_rl.policies.pi0.policy import Pi0Policy
from embodied_rl.policies.prefix_cache import PrefixCache
from embodied_rl.rng import DecisionRng
from embodied_rl.types import Observation

INSTRUCTION = "pick up the black bowl between the plate and the ramekin and place it on the plate"
SHARED, SEPARATE = "one prefix", "a prefix for each step"
KEPT, AGAIN = "prefixes kept", "prefixes computed again"
_STORE_BYTES = 1 << 30
ACT_STEPS, UPDATE_STEPS = 10, 4
ROWS, REPEATS = 4, 5


@dataclass(frozen=True, slots=True)
class Row:
    """cpu_ms: median over the repeats for one decision; low, high: extremes."""

    task: str
    contender: str
    cpu_ms: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Figures:
    """ratios: `prefix_reuse`, `shared_prefix_update`, `kept_prefix_update` (times as fast), and the largest differences
    between both ways: `action_difference`, and relative to the largest gradient of its parameter (at least 1)
    `gradient_difference` and `kept_gradient_difference`.
    """

    rows: list[Row]
    ratios: dict[str, float]
    setup: dict[str, Any]


def flow_figures(quick: bool) -> Figures:
    """Measure both ways on one thread; quick: a smaller network, once."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _measure(quick)
    finally:
        torch.set_num_threads(threads)


def _measure(quick: bool) -> Figures:
    config = nano(horizon=50) if quick else tiny(image_size=224, horizon=50)
    policy = Pi0Policy.fresh(replace(config, max_action_dim=32, max_state_dim=32), [INSTRUCTION])
    draw = np.random.default_rng(0)
    shape = (ROWS, config.num_cameras, config.image_size, config.image_size, 3)
    obs = Observation.from_numpy(
        draw.integers(0, 256, shape, dtype=np.uint8),
        draw.normal(size=(ROWS, 8)).astype(np.float32),
        [INSTRUCTION] * ROWS,
    )
    repeats = 1 if quick else REPEATS
    act, action_difference = _act(policy, obs, repeats)
    update, gradient_difference = _update(policy, obs, repeats)
    frozen, kept_difference = _frozen(policy, obs, repeats)
    rows = [*act, *update, *frozen]
    ratios = {
        "prefix_reuse": act[1].cpu_ms / act[0].cpu_ms,
        "shared_prefix_update": update[1].cpu_ms / update[0].cpu_ms,
        "kept_prefix_update": frozen[1].cpu_ms / frozen[0].cpu_ms,
        "action_difference": action_difference,
        "gradient_difference": gradient_difference,
        "kept_gradient_difference": kept_difference,
    }
    patches = config.vision.num_patches * config.num_cameras
    setup = {
        "parameters": sum(parameter.numel() for parameter in policy.parameters()),
        "batch": ROWS,
        "prefix_tokens": patches + len(policy.prompt.batch([INSTRUCTION], None)[0][0]),
        "horizon": config.horizon,
        "act_steps": ACT_STEPS,
        "update_steps": UPDATE_STEPS,
        "num_threads": 1,
        "repeats": repeats,
    }
    return Figures(rows, ratios, setup)


def _act(policy: Pi0Policy, obs: Observation, repeats: int) -> tuple[list[Row], float]:
    policy.flow = FlowSettings(num_inference_steps=ACT_STEPS)
    images, proprio = obs.images, obs.proprio
    rows = np.arange(ROWS)
    config = policy.config
    noise = draw_noise(DecisionRng(rows, rows), policy.flow, config.horizon, config.max_action_dim, policy.device)
    read = partial(policy.read_prefix, images, proprio, obs.instruction, 1)

    @torch.no_grad()
    def shared() -> Tensor:
        return sample_path(partial(policy.denoise_step, read()), noise, policy.flow, explore=False).action

    def step(x: Tensor, index: Tensor) -> Transition:
        return policy.denoise_step(read(), x, index)

    @torch.no_grad()
    def separate() -> Tensor:
        return sample_path(step, noise, policy.flow, explore=False).action

    times, outputs = interleaved({SHARED: shared, SEPARATE: separate}, repeats, ROWS)
    return make_rows("flow act", times), float((outputs[SHARED] - outputs[SEPARATE]).abs().max())


def _update(policy: Pi0Policy, obs: Observation, repeats: int) -> tuple[list[Row], float]:
    policy.flow = FlowSettings(exploration="flow_noise", num_inference_steps=UPDATE_STEPS)
    rows = np.arange(ROWS)
    replay = policy.act(obs, DecisionRng(rows, rows), "sample").replay
    arguments = obs.images, obs.proprio, obs.instruction
    parts = [
        {"points": replay["points"][:, m : m + 2], "step": replay["step"][:, m : m + 1]} for m in range(UPDATE_STEPS)
    ]
    gradients = partial(_gradients, policy, arguments)
    work = {SHARED: partial(gradients, [replay]), SEPARATE: partial(gradients, parts)}
    times, outputs = interleaved(work, repeats, ROWS)
    return make_rows("flow update", times), _difference(outputs[SHARED], outputs[SEPARATE])


def _frozen(policy: Pi0Policy, obs: Observation, repeats: int) -> tuple[list[Row], float]:
    """Leaves the policy frozen."""
    policy.flow = FlowSettings(num_inference_steps=UPDATE_STEPS)
    policy.model.freeze_language_model()
    store = policy.prefix_cache = PrefixCache(_STORE_BYTES)
    rows = np.arange(ROWS)
    replay = policy.act(obs, DecisionRng(rows, rows), "sample").replay
    arguments = obs.images, obs.proprio, obs.instruction

    def update(kept: PrefixCache | None) -> dict[str, Tensor]:
        policy.prefix_cache = kept
        return _gradients(policy, arguments, [replay])

    times, outputs = interleaved({KEPT: partial(update, store), AGAIN: partial(update, None)}, repeats, ROWS)
    assert store.missed == 0, "every row was acted on"
    return make_rows("flow frozen update", times), _difference(outputs[KEPT], outputs[AGAIN])


def _gradients(
    policy: Pi0Policy, arguments: tuple[Tensor, Tensor, list[str]], replays: list[dict[str, Tensor]]
) -> dict[str, Tensor]:
    policy.zero_grad()
    for part in replays:
        policy.evaluate(*arguments, part).log_prob.mean().backward()
    return {name: p.grad.clone() for name, p in policy.named_parameters() if p.grad is not None}


def _difference(one: dict[str, Tensor], two: dict[str, Tensor]) -> float:
    """The largest of two gradients, relative to the largest of each parameter (at least 1)."""
    return max(float((one[name] - two[name]).abs().max() / two[name].abs().max().clamp_min(1.0)) for name in two)


def make_rows(task: str, times: dict[str, list[float]]) -> list[Row]:
    """One row a contender."""
    return [Row(task, name, statistics.median(each), min(each), max(each)) for name, each in times.items()]


def table(figures: Figures, title: str) -> Table:
    """The figures for a terminal."""
    out = Table("task", "contender", title=title)
    for name in ("CPU ms/decision", "low", "high"):
        out.add_column(name, justify="right")
    for row in figures.rows:
        out.add_row(row.task, row.contender, f"{row.cpu_ms:.1f}", f"{row.low:.1f}", f"{row.high:.1f}")
    return out
