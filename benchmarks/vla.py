"""`embodied-rl bench vla`: an OpenVLA of published size with random weights, as training uses it, mostly on a GPU.

Speed and memory do not depend on what the weights are, so nothing is downloaded. The policy is the one that
`embodied-rl plan` counts: LoRA, frozen weights in bfloat16, activations computed again, a critic. It acts through the
rollout's `ParallelActor`, and its rows go through `Learner.update` with PPO.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch.utils.flop_counter import FlopCounterMode

from embodied_rl.algorithms.base import evaluate_rows
from embodied_rl.algorithms.config import PPOConfig
from embodied_rl.algorithms.make import make_algorithm
from embodied_rl.autotune.memory import GIB, Need, need, room
from embodied_rl.benchmarks.report import describe_machine, machine_line, write_json
from embodied_rl.benchmarks.vla_random import MODE, WAY, decide, fill, make_batch, make_policy, observe
from embodied_rl.errors import UserError
from embodied_rl.learner.config import LearnerConfig
from embodied_rl.learner.learner import Learner
from embodied_rl.learner.off_policy import importance_correction
from embodied_rl.learner.recompute import evaluate_again
from embodied_rl.policies.openvla import config as openvla
from embodied_rl.policies.openvla import memory
from embodied_rl.policies.openvla.policy import OpenVLAPolicy
from embodied_rl.rollout.actor import ParallelActor
from embodied_rl.utils.machine import pick_device

LARGE = "7b"
_RATIO_TOLERANCE = 0.1
"""Rounding alone moves bfloat16's ratios; how far is among the figures, and must not stop the bench."""


@dataclass(frozen=True, slots=True)
class Amount:
    """How much is measured. act_rows: decided for at once; learn_rows: of an update; microbatch: of one pass of it."""

    act_rows: tuple[int, ...] = (1, 8, 32)
    learn_rows: int = 32
    microbatch: int = 8
    repeats: int = 5


QUICK = Amount(act_rows=(1, 2), learn_rows=4, microbatch=2, repeats=1)


@dataclass(frozen=True, slots=True)
class Row:
    """ms: median of the repeats for one of `rows` rows; low, high: extremes. planned_gib: what `plan` counts for it.

    allocated_gib, reserved_gib: peaks of what tensors and torch's allocator held; None on a CPU.
    """

    part: str
    rows: int
    ms: float
    low: float
    high: float
    planned_gib: float | None = None
    allocated_gib: float | None = None
    reserved_gib: float | None = None


def timed(
    part: str, rows: int, device: str, repeats: int, work: Callable[[], Any], before: Callable[[], Any] = lambda: None
) -> Row:
    """Measure `work` on so many rows, after a call that does not count; `before` runs before each call, untimed."""
    cuda = device == "cuda"
    if cuda:
        torch.cuda.empty_cache()  # or `reserved` would be an earlier part's
    times, allocated, reserved = [], 0, 0
    for turn in range(repeats + 1):
        before()
        if cuda:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        began = time.perf_counter()
        work()
        if cuda:
            torch.cuda.synchronize()
        seconds = time.perf_counter() - began
        if turn:
            times.append(1e3 * seconds / rows)
        if cuda:
            allocated = max(allocated, torch.cuda.max_memory_allocated())
            reserved = max(reserved, torch.cuda.max_memory_reserved())
    row = Row(part, rows, statistics.median(times), min(times), max(times))
    return replace(row, allocated_gib=allocated / GIB, reserved_gib=reserved / GIB) if cuda else row


def measure(policy: OpenVLAPolicy, plan: Need, device: str, amount: Amount) -> tuple[list[Row], dict[str, float]]:
    """The rows of the table, and facts about the run: rounding, operations of a forward pass."""
    threads = torch.get_num_threads() if device == "cpu" else 1
    actor = ParallelActor(policy, max(amount.act_rows), threads)
    count, micro = amount.learn_rows, amount.microbatch
    obs = observe(policy.config, count)
    batch = make_batch(obs, decide(actor, obs))
    drift = importance_correction(batch, policy, micro, all_rows=True)
    order = torch.from_numpy(np.random.default_rng(0).permutation(count))
    again, _ = evaluate_again(policy, batch, order, micro)
    facts = {"log_prob_drift": drift, "ratio_error": float((again - batch.log_prob[order]).expm1().abs().max())}
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        evaluate_rows(policy, batch, order[:micro])
    facts["forward_tflop_per_row"] = counter.get_total_flops() / micro / 1e12

    def recompute() -> None:
        importance_correction(batch, policy, micro, all_rows=True)

    config = LearnerConfig(minibatch_size=count, microbatch_size=micro, ratio_tolerance=_RATIO_TOLERANCE)
    algorithm = make_algorithm(PPOConfig(epochs=1))
    with (
        tempfile.TemporaryDirectory() as dumps,
        closing(Learner(policy, algorithm, config, seed=0, dump_dir=Path(dumps), threads=threads)) as learner,
    ):
        # learning first: from then on the optimiser's state is there, as it is while a run acts
        update = timed("update", count, device, amount.repeats, lambda: learner.update(batch), recompute)
    rows = [replace(update, planned_gib=plan.update(micro) / GIB)]
    rows.append(timed("forward", count, device, amount.repeats, recompute))
    for count in amount.act_rows:
        obs = observe(policy.config, count)
        row = timed("act", count, device, amount.repeats, lambda obs=obs: decide(actor, obs))
        rows.append(replace(row, planned_gib=plan.rollout(count) / GIB))
    actor.close()
    return sorted(rows, key=lambda row: (row.part, row.rows)), facts


def ratios_of(rows: Sequence[Row], facts: dict[str, float]) -> dict[str, float]:
    """Times, what batching saves, operations a second; and where memory was measured, planned / allocated."""
    acts = {row.rows: row for row in rows if row.part == "act"}
    few, many = acts[min(acts)], acts[max(acts)]
    forward, update = (next(row for row in rows if row.part == part) for part in ("forward", "update"))
    ratios = {f"act_ms_{count}": row.ms for count, row in acts.items()} | {
        "forward_ms": forward.ms,
        "update_ms": update.ms,
        "act_batching": few.ms / many.ms,
        "update_vs_act": update.ms / many.ms,
        "forward_tflops": 1e3 * facts["forward_tflop_per_row"] / forward.ms,
    }
    for name, row in (("act", many), ("update", update)):
        if row.planned_gib is not None and row.allocated_gib:
            ratios[f"{name}_planned_vs_allocated"] = row.planned_gib / row.allocated_gib
    return ratios


def _plan(policy: OpenVLAPolicy, name: str, device: str, amount: Amount) -> Need:
    """What `embodied-rl plan` says; UserError before anything is loaded if it does not fit."""
    if device == "cpu" and name == LARGE:
        held = sum(p.nbytes + 12 * p.numel() * p.requires_grad for p in policy.parameters())  # gradient, two moments
        raise UserError(
            f"bench vla needs a GPU, and torch sees none here: weights, gradients and optimiser of OpenVLA {name} take "
            f"{held / GIB:.1f} GiB of its memory, activations come on top; a CPU runs --preset nano."
        )
    footprint = memory.measure(policy.config, WAY)
    plan = need(MODE, footprint, memory.cache_bytes(policy.config, 2))
    rows = amount.microbatch, max(amount.act_rows)
    if device == "cuda" and room(device) < max(plan.update(rows[0]), plan.rollout(rows[1])):
        raise UserError(
            f"bench vla needs a GPU with {plan.total(*rows) / GIB:.1f} GiB for OpenVLA {name}, and "
            f"{room(device) / GIB:.1f} GiB of this one are free for it; --preset nano needs less."
        )
    return plan


def _table(rows: Sequence[Row], title: str) -> Table:
    table = Table("part", title=title)
    for name in ("rows", "ms/row", "low", "high", "planned GiB", "allocated", "reserved"):
        table.add_column(name, justify="right")
    for row in rows:
        sizes_of = (row.planned_gib, row.allocated_gib, row.reserved_gib)
        table.add_row(
            row.part,
            str(row.rows),
            *(f"{value:.2f}" for value in (row.ms, row.low, row.high)),
            *("" if size is None else f"{size:.2f}" for size in sizes_of),
        )
    return table


def run(json_path: Path | None, quick: bool = False, preset: str | None = None) -> None:
    """Print the table; write `rows`, flat `ratios` and the machine to `json_path`.

    quick: the nano network and few repeats; the figures are then only a smoke test. preset: None is the published size.
    """
    console = Console()
    machine = describe_machine(("torch", "peft", "numpy"))
    name, amount = ("nano", QUICK) if quick else (preset or LARGE, Amount())
    config, device = openvla.nano(chunk_len=1) if quick else openvla.preset(name), pick_device("auto")
    with console.status("counting what the policy needs; nothing is loaded, but a large one takes about a minute"):
        policy = make_policy(config)
        plan = _plan(policy, name, device, amount)
    with console.status(f"measuring OpenVLA {name} on {device}"):
        fill(policy, device)
        rows, facts = measure(policy, plan, device, amount)
    ratios = ratios_of(rows, facts)
    prompt = len(policy.tokenizer.ids(memory.INSTRUCTION))
    setup: dict[str, Any] = {
        "preset": name,
        "weights": "random",
        "device": device,
        "gpu": torch.cuda.get_device_name() if device == "cuda" else "none",
        "cuda": torch.version.cuda or "none",
        "parameters": sum(p.numel() for p in policy.parameters()),
        "trained": sum(p.numel() for p in policy.parameters() if p.requires_grad),
        "training": MODE.name,
        "tokens": config.text_offset + prompt + config.num_tokens - 1,
        "action_tokens": config.num_tokens,
        "image_size": config.image_size,
        "cameras": config.num_cameras,
        "microbatch_size": amount.microbatch,
        "repeats": amount.repeats,
        **facts,
    }
    console.print(_table(rows, f"OpenVLA {name}, {MODE.name}; {setup['gpu'] if device == 'cuda' else 'CPU'}"))
    for key, value in (setup | ratios).items():
        console.print(f"  {key:<28}{f'{value:.3g}' if isinstance(value, float) else value}", highlight=False)
    console.print(machine_line(machine))
    if json_path is not None:
        write_json(json_path, "vla", quick, machine, [asdict(row) for row in rows], ratios, setup=setup)
