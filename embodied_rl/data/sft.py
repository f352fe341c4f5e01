"""Supervised fine-tuning on demonstrations: one loop for any policy with `sft_loss`.

The state (weights, optimiser, step) is saved to one file, atomically. Batches and augmentation depend on (seed, step)
alone, so a run that was stopped and started again ends with the same weights as one that was not.
"""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Literal, Protocol

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from embodied_rl.data.chunks import ChunkDataset, SftBatch, batch_samples, random_shift
from embodied_rl.errors import UserError


class Imitator(Protocol):
    """What the loop needs of a policy: a torch module with `sft_loss` (see `embodied_rl.policy.Policy`)."""

    def sft_loss(self, images: torch.Tensor, proprio: torch.Tensor, instruction: list[str],
                 actions: torch.Tensor) -> torch.Tensor: ...
    def parameters(self) -> Iterator[torch.nn.Parameter]: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state_dict: dict[str, Any]) -> Any: ...
    def train(self, mode: bool = True) -> Any: ...


@dataclass(frozen=True, slots=True)
class SftConfig:
    """Settings of the loop; every one of them changes the result, except `threads` and the three intervals."""

    steps: int = 2000
    """Optimiser steps."""
    batch_size: int = 64
    """Samples a step; a sample is one frame and the chunk of actions that starts there."""
    lr: float = 1e-3
    """Peak learning rate of AdamW."""
    warmup: int = 100
    """Steps over which the learning rate rises linearly from 0 to its peak."""
    decay: Literal["cosine", "linear"] = "cosine"
    """How the learning rate falls to 0 after the warm-up."""
    weight_decay: float = 0.01
    """AdamW's weight decay, on matrices only (not on biases, norms and embeddings of one dimension)."""
    grad_clip: float = 1.0
    """Largest gradient norm."""
    shift: int = 3
    """Random shift of each image by up to this many pixels (0: none)."""
    validation: float = 0.1
    """Share of the episodes held out for the validation loss."""
    bf16: bool = False
    """Run the forward pass in bfloat16 (autocast): quicker on a GPU, and on a CPU with avx512_bf16 for larger models."""
    seed: int = 0
    """Seed of the initial weights, the split, the order of batches and the augmentation."""
    threads: int | None = None
    """CPU threads of torch (None: torch's own choice)."""
    val_every: int = 250
    """Steps between two validations."""
    val_samples: int = 512
    """Validation samples, evenly spaced over the held-out episodes."""
    save_every: int = 500
    """Steps between two saves of the state."""

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "val_every", "val_samples", "save_every"):
            if getattr(self, name) < 1:
                raise UserError(f"--{name.replace('_', '-')} must be at least 1, got {getattr(self, name)}")
        if self.lr <= 0 or self.grad_clip <= 0 or self.shift < 0 or self.warmup < 0:
            raise UserError("--lr and --grad-clip must be positive, --shift and --warmup not negative")

    def identity(self) -> dict[str, Any]:
        """The settings that decide the result: a stopped run may only continue with the same ones."""
        values = asdict(self)
        for name in ("threads", "val_every", "val_samples", "save_every"):
            del values[name]
        return values


@dataclass(slots=True)
class SftResult:
    """finished: all steps were made (else Ctrl-C stopped it and the state was saved). history: one row a validation."""

    finished: bool
    step: int
    history: list[dict[str, float]] = field(default_factory=list)


def learning_rate(step: int, config: SftConfig) -> float:
    """Rate for `step` (0-based): linear warm-up, then cosine or linear decay that reaches 0 at `config.steps`."""
    if step < config.warmup:
        return config.lr * (step + 1) / config.warmup
    progress = (step - config.warmup) / max(config.steps - config.warmup, 1)
    return config.lr * (0.5 * (1.0 + math.cos(math.pi * progress)) if config.decay == "cosine" else 1.0 - progress)


def optimiser(policy: Imitator, config: SftConfig) -> torch.optim.AdamW:
    """AdamW with weight decay on the parameters of two or more dimensions."""
    trained = [p for p in policy.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=config.lr, betas=(0.9, 0.95))


def fit(policy: Imitator, train: ChunkDataset, val: ChunkDataset, config: SftConfig, state: Path, *,
        accuracy: Callable[[SftBatch], float], console: Console, identity: dict[str, Any]) -> SftResult:
    """Train `policy` in place; continue from the file `state` when it exists.

    accuracy: share of action tokens that the policy predicts right on a batch. identity: what must be equal for `state`
    to be continued (dataset fingerprint, preset, ...), besides the config. Raises UserError when `state` belongs to
    another run, when the loss is not finite (the last saved state stays) and when the disk is full.
    """
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    adam = optimiser(policy, config)
    identity = identity | config.identity()
    result = SftResult(finished=False, step=0)
    if state.exists():
        result.step, result.history = _restore(state, policy, adam, identity)
        console.print(f"continuing {state} at step {result.step}")
    with _interrupt_flag() as stopped, _progress(console) as bar:
        job = bar.add_task("sft", total=config.steps, completed=result.step, note="")
        started, first = time.monotonic(), result.step
        while result.step < config.steps and not stopped():
            loss, norm = _update(policy, adam, train, config, result.step)
            result.step += 1
            pace = (time.monotonic() - started) / (result.step - first)
            bar.update(job, completed=result.step, note=f"loss {loss:.3f}  {pace * 1e3:.0f} ms/step")
            if result.step % config.val_every == 0 or result.step == config.steps:
                row = {"step": result.step, "loss": loss, "grad_norm": norm, **validate(policy, val, config, accuracy)}
                result.history.append(row)
                console.print("  ".join(f"{key} {value:.4g}" for key, value in row.items()))
            if result.step % config.save_every == 0:
                _save(state, policy, adam, identity, result)
    _save(state, policy, adam, identity, result)
    result.finished = result.step == config.steps
    return result


def validate(policy: Imitator, val: ChunkDataset, config: SftConfig,
             accuracy: Callable[[SftBatch], float]) -> dict[str, float]:
    """Mean loss and token accuracy over up to `val_samples` held-out samples; empty without held-out episodes."""
    if len(val) == 0:
        return {}
    samples = np.unique(np.linspace(0, len(val) - 1, config.val_samples).astype(np.int64))
    policy.train(False)
    losses, right = 0.0, 0.0
    with torch.no_grad():
        for part in np.array_split(samples, math.ceil(len(samples) / config.batch_size)):
            batch = val.batch(part)
            with _autocast(policy, config):
                losses += len(part) * float(_loss(policy, batch))
            right += len(part) * accuracy(batch)
    return {"val_loss": losses / len(samples), "val_accuracy": right / len(samples)}


def _update(policy: Imitator, adam: torch.optim.AdamW, train: ChunkDataset, config: SftConfig,
            step: int) -> tuple[float, float]:
    """One optimiser step; return its loss and gradient norm (before clipping)."""
    batch = train.batch(batch_samples(len(train), config.batch_size, step, config.seed))
    batch.images = random_shift(batch.images, config.shift, config.seed, step)
    for group in adam.param_groups:
        group["lr"] = learning_rate(step, config)
    policy.train(True)
    adam.zero_grad(set_to_none=True)
    with _autocast(policy, config):
        loss = _loss(policy, batch)
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), config.grad_clip)
    if not math.isfinite(float(loss)) or not math.isfinite(float(norm)):
        raise UserError(f"the loss is not finite at step {step} (loss {float(loss)}, gradient {float(norm)}); lower --lr")
    adam.step()
    return float(loss), float(norm)


def _loss(policy: Imitator, batch: SftBatch) -> torch.Tensor:
    device = next(policy.parameters()).device
    return policy.sft_loss(batch.images.to(device), batch.proprio.to(device), batch.instruction, batch.actions.to(device))


def _autocast(policy: Imitator, config: SftConfig) -> torch.autocast:
    return torch.autocast(next(policy.parameters()).device.type, dtype=torch.bfloat16, enabled=config.bf16)


def _save(path: Path, policy: Imitator, adam: torch.optim.AdamW, identity: dict[str, Any], result: SftResult) -> None:
    part = path.with_name(path.name + ".part")
    content = {"policy": policy.state_dict(), "optimizer": adam.state_dict(), "identity": identity, "step": result.step,
               "history": result.history}
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


def _restore(path: Path, policy: Imitator, adam: torch.optim.AdamW,
             identity: dict[str, Any]) -> tuple[int, list[dict[str, float]]]:
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
        other = [key for key in identity if content["identity"].get(key) != identity[key]]
    except Exception as error:
        raise UserError(f"cannot read {path} ({error}); remove it to start over") from error
    if other:
        raise UserError(f"{path} belongs to a run with another {', '.join(other)}; remove it to start over")
    policy.load_state_dict(content["policy"])
    adam.load_state_dict(content["optimizer"])
    return content["step"], content["history"]


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(), TextColumn("ETA"), TimeRemainingColumn(), console=console,
    )


@contextmanager
def _interrupt_flag() -> Iterator[Callable[[], bool]]:
    """Turn the first Ctrl-C into a flag, so that no step is cut in half; the second interrupts at once."""
    hit = False

    def note(_signal: int, _frame: FrameType | None) -> None:
        nonlocal hit
        hit = True
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: hit
    finally:
        signal.signal(signal.SIGINT, before)
