"""Supervised fine-tuning on demonstrations: one loop for any policy with `sft_loss`.

The state (weights, optimiser, step) is saved to one file, atomically. Batches and augmentation depend on (seed, step)
alone, so a run that was stopped and started again ends with the same weights as one that was not.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from rich.console import Console

from embodied_rl.config.sft import SftConfig, learning_rate
from embodied_rl.data.chunks import SftBatch
from embodied_rl.data.mixture import Augmentation, Mixture, Part
from embodied_rl.data.progress import ProgressBar
from embodied_rl.errors import UserError
from embodied_rl.learner.imitation import imitation_loss
from embodied_rl.utils.signals import StopRequest


class Imitator(Protocol):
    """What the loop needs of a policy: a torch module with `sft_loss` (see `embodied_rl.policy.Policy`).

    To learn from several data sets with statistics of their own it also needs `select(key)`.
    """

    def sft_loss(
        self,
        images: torch.Tensor,
        proprio: torch.Tensor,
        instruction: list[str],
        actions: torch.Tensor,
        drop_action_history: torch.Tensor | None = None,
        action_mask: torch.Tensor | None = None,
    ) -> torch.Tensor: ...
    def parameters(self) -> Iterator[torch.nn.Parameter]: ...
    def named_parameters(self) -> Iterator[tuple[str, torch.nn.Parameter]]: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state_dict: dict[str, Any]) -> Any: ...
    def train(self, mode: bool = True) -> Any: ...


Measure = Callable[[SftBatch], dict[str, float]]


@dataclass(slots=True)
class SftResult:
    """finished: all steps were made (else Ctrl-C stopped it and the state was saved). history: one row a validation."""

    finished: bool
    step: int
    history: list[dict[str, float]] = field(default_factory=list)


def optimiser(policy: Imitator, config: SftConfig) -> torch.optim.AdamW:
    """AdamW with weight decay on the parameters of two or more dimensions."""
    trained = [p for p in policy.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": config.weight_decay},  # not biases and norms
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=config.lr, betas=(0.9, 0.95))


def fit(
    policy: Imitator,
    train: Mixture,
    val: Mixture,
    config: SftConfig,
    state: Path,
    *,
    measure: Measure,
    console: Console,
    identity: dict[str, Any],
) -> SftResult:
    """Train `policy` in place; continue from the file `state` when it exists.

    Args:
        measure: further figures of a validation batch.
        identity: what must be equal for `state` to be continued (dataset fingerprint, preset, ...), besides the config.

    Raises:
        UserError: `state` is damaged or belongs to another run, the loss is not finite (the last saved state stays), or
            the disk is full.
    """
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    adam = optimiser(policy, config)
    identity = identity | config.identity()
    result = SftResult(finished=False, step=0)
    if state.exists():
        result.step, result.history = _restore(state, policy, adam, identity)
        console.print(f"continuing {state} at step {result.step}", soft_wrap=True)
    with StopRequest(lambda: console.print("stopping after this step")) as stop, ProgressBar(console, "sft") as bar:
        job = bar.add_task("", total=config.steps, completed=result.step, note="")
        started, first = time.monotonic(), result.step
        while result.step < config.steps and not stop.asked:
            loss, norm = _update(policy, adam, train, config, result.step)
            result.step += 1
            pace = (time.monotonic() - started) / (result.step - first)
            bar.update(job, completed=result.step, note=f"loss {loss:.3f}  {pace * 1e3:.0f} ms/step")
            if result.step % config.val_every == 0 or result.step == config.steps:
                row = {"step": result.step, "loss": loss, "grad_norm": norm, **validate(policy, val, config, measure)}
                result.history.append(row)
                console.print("  ".join(f"{key} {value:.4g}" for key, value in row.items()), soft_wrap=True)
            if result.step % config.save_every == 0:
                _save(state, policy, adam, identity, result)
    _save(state, policy, adam, identity, result)
    result.finished = result.step == config.steps
    return result


def validate(policy: Imitator, val: Mixture, config: SftConfig, measure: Measure) -> dict[str, float]:
    """Mean loss and `measure` over the targets of up to `val_samples` held-out samples; empty without any.

    Of several data sets each has a share of the samples by its weight.
    """
    parts = [part for part in val.parts if len(part.samples)]
    policy.train(False)
    sums: dict[str, float] = {}
    total, whole = 0.0, sum(part.weight for part in parts)
    for part in parts:
        for batch in _validation_batches(part, max(1, round(config.val_samples * part.weight / whole)), config):
            with torch.no_grad(), _autocast(policy, config):
                figures = {"loss": float(_loss(policy, [batch], several=val.several)), **measure(batch)}
            # By targets: those past an end that is no success are masked.
            rows = len(batch.instruction)
            weight = rows if batch.action_mask is None else float(batch.action_mask.float().mean(1).sum())
            total += weight
            for name, value in figures.items():
                sums[name] = sums.get(name, 0.0) + weight * value
    return {f"val_{name}": value / total for name, value in sums.items()}


def _validation_batches(part: Part, most: int, config: SftConfig) -> Iterator[SftBatch]:
    """Batches of samples that are spread over all held-out episodes, and the same ones in every validation."""
    samples = np.unique(np.linspace(0, len(part.samples) - 1, most).astype(np.int64))
    for numbers in np.array_split(samples, math.ceil(len(samples) / config.batch_size)):
        batch = part.samples.batch(numbers)
        batch.key = part.key
        yield batch


def _update(
    policy: Imitator, adam: torch.optim.AdamW, train: Mixture, config: SftConfig, step: int
) -> tuple[float, float]:
    """One optimiser step; return its loss and gradient norm (before clipping)."""
    batches = train.batch(step, config.batch_size, config.seed, Augmentation(config.shift, config.drop_action_history))
    for group in adam.param_groups:
        group["lr"] = learning_rate(step, config)
    policy.train(True)
    adam.zero_grad(set_to_none=True)
    with _autocast(policy, config):
        loss = _loss(policy, batches, several=train.several)
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), config.grad_clip)
    numbers = float(loss.detach()), float(norm)
    if not all(map(math.isfinite, numbers)):  # before the step: the weights are still sound
        raise UserError(f"step {step} is not finite (loss {numbers[0]}, gradient {numbers[1]}); lower --lr")
    adam.step()
    return numbers


def _loss(policy: Any, batches: Sequence[SftBatch], *, several: bool) -> torch.Tensor:
    """The mean over the samples of all batches, each of one data set; several: there is more than one to choose."""
    losses: list[torch.Tensor] = []
    for batch in batches:
        if several:
            policy.select(batch.key)
        losses.append(imitation_loss(policy, batch))
    if len(losses) == 1:
        return losses[0]
    rows = [len(batch) for batch in batches]
    whole = torch.zeros((), device=losses[0].device)
    return sum((loss * (count / sum(rows)) for loss, count in zip(losses, rows, strict=True)), whole)


def _autocast(policy: Imitator, config: SftConfig) -> torch.autocast:
    return torch.autocast(next(policy.parameters()).device.type, dtype=torch.bfloat16, enabled=config.bf16)


def _save(path: Path, policy: Imitator, adam: torch.optim.AdamW, identity: dict[str, Any], result: SftResult) -> None:
    part = path.with_name(path.name + ".part")
    frozen = {name for name, parameter in policy.named_parameters() if not parameter.requires_grad}
    content = {
        "policy": {name: tensor for name, tensor in policy.state_dict().items() if name not in frozen},
        "optimizer": adam.state_dict(),
        "identity": identity,
        "step": result.step,
        "history": result.history,
    }
    try:
        with part.open("wb") as handle:
            torch.save(content, handle)
            handle.flush()
            os.fsync(handle.fileno())
        os.replace(part, path)
    except (OSError, RuntimeError) as error:  # torch reports a full disk as RuntimeError
        part.unlink(missing_ok=True)
        kept = f"; the state before it is still in {path}" if path.exists() else ""
        raise UserError(f"cannot save {path} ({error}); free some disk space{kept}") from error


def _restore(
    path: Path, policy: Imitator, adam: torch.optim.AdamW, identity: dict[str, Any]
) -> tuple[int, list[dict[str, float]]]:
    """Fill policy and optimiser from the state file; return its step and history."""
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
        other = [key for key in identity if content["identity"].get(key) != identity[key]]
        if not other:
            policy.load_state_dict(policy.state_dict() | content["policy"])  # what is frozen is its checkpoint's
            adam.load_state_dict(content["optimizer"])
            return content["step"], content["history"]
    except Exception as error:  # torch's message has many lines and advises to load it unsafely
        raise UserError(f"{path} is damaged ({type(error).__name__}); remove it to start over") from error
    raise UserError(f"{path} belongs to a run with another {', '.join(other)}; remove it to start over")
