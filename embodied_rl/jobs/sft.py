"""Trains a policy on demonstrations: the data, a policy that fits them, imitation, the checkpoint."""

from __future__ import annotations

import dataclasses
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from embodied_rl.config.policies import CUSTOM
from embodied_rl.config.register import CUSTOM_POLICIES
from embodied_rl.config.sft import SftCommand
from embodied_rl.data.chunks import Targets, split
from embodied_rl.data.frames import ImageFit
from embodied_rl.data.mixture import Mixture, Part
from embodied_rl.errors import UserError
from embodied_rl.evaluation.overlap import TRAINED_STATES, demonstrated_states, join_states, trained_states
from embodied_rl.factory.custom import new_for_data
from embodied_rl.factory.policies import FAMILIES, PublishedOptions, load_weights, policy_folder, save_policy
from embodied_rl.jobs.sft_data import Source, data_info, fingerprints, open_sources, requests
from embodied_rl.policies.checkpoints.folder import read_provenance
from embodied_rl.policies.checkpoints.hub import source_name
from embodied_rl.policies.checkpoints.integrity import files_digest
from embodied_rl.policies.nn.lora import set_training
from embodied_rl.policies.preprocessing.fit import fit_image
from embodied_rl.policy import masked_steps
from embodied_rl.real_robot.core.views_of_training import small_view
from embodied_rl.rng import DecisionRng
from embodied_rl.training import sft
from embodied_rl.types import Observation
from embodied_rl.utils.console import LastingConsole
from embodied_rl.utils.lock import locked
from embodied_rl.version import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from embodied_rl.data.chunks import SftBatch
    from embodied_rl.factory.policies import AnyPolicy
    from embodied_rl.policies.family import PolicyFamily
    from embodied_rl.training.sft import SftResult


def run(command: SftCommand, line: str) -> bool:
    """Train, or go on with what a stopped run has saved.

    Args:
        command: the dataset, the policy and the loop.
        line: the command line, for the checkpoint; the same one goes on, or finds its work done.

    Returns:
        Whether the checkpoint is written, now or before; False when Ctrl-C stopped the training.

    Raises:
        UserError: The dataset does not fit the policy, or `out` is another's.
    """
    with locked(command.out.with_name(command.out.name + ".sft.lock"), f"training {command.out}"):
        if command.out.exists():
            _check_done(command, line)
            state_path(command.out).unlink(missing_ok=True)
            print(f"{command.out} is done: this command wrote it before")
            return True
        return _train(command, line)


def _check_done(command: SftCommand, line: str) -> None:
    """Raise UserError unless `--out` holds what this command wrote from this data; a kill may have come after it."""
    wrote = read_provenance(command.out)
    if wrote.get("command") == line:
        sets = wrote.get("datasets") or [wrote["dataset"]]
        if [each["sha256"] for each in sets] == fingerprints(command):
            return
    raise UserError(f"{command.out} already exists; choose another --out or remove it")


def _train(command: SftCommand, line: str) -> bool:
    console = LastingConsole()
    start = _start(command)
    if start.model is None:
        sources = open_sources(command, None, console)
        policy, start = _registered(command, start, sources)
    else:
        fit = ImageFit(start.model.image_size, partial(fit_image, how=start.model.image_fit))
        sources = open_sources(command, fit, console)
        policy = _policy(command, start, sources, console)
    _describe(command, start, policy, console)
    started = time.monotonic()
    result, targets = _fit(command, policy, start, sources, console)
    state = state_path(command.out)
    if not result.finished:
        console.print(
            f"stopped at step {result.step} of {command.steps}; saved in {state}. The same command goes on.",
            soft_wrap=True,
        )
        return False
    about = {
        "views": [small_view(picture) for picture in sources[0].data.images[np.array([0])][0]],
        "targets": dataclasses.asdict(targets),
        "last_session_seconds": round(time.monotonic() - started, 1),
        "history": result.history,
    }
    if len({source.key for source in sources}) > 1:
        policy.select(sources[0].key)
    save_policy(policy, command.out, _provenance(command, start, sources, line) | about)
    state.unlink()
    console.print(f"wrote {command.out}")
    return True


def state_path(out: Path) -> Path:
    """Where the training state stands until the checkpoint is finished."""
    return out.with_name(out.name + ".sft.pt")


@dataclasses.dataclass(frozen=True, slots=True)
class _Start:
    """What training begins from: random weights of a preset's `model`, or the policy in `folder`, for any robot.

    model: None of a registered policy, which says all itself.
    """

    family: PolicyFamily
    model: Any
    chunk_len: int
    folder: Path | None = None
    policy: AnyPolicy | None = None

    def describe(self) -> dict[str, Any]:
        """What the checkpoint says of it; empty for random weights."""
        if self.folder is None or self.policy is None:
            return {}
        digest = files_digest(self.policy.source_files, self.folder)
        return {"checkpoint": {"path": source_name(self.folder), "sha256": digest}}


def _start(command: SftCommand) -> _Start:
    if not command.checkpoint:
        if command.policy in CUSTOM_POLICIES:
            return _Start(FAMILIES[CUSTOM], None, 0)
        family = FAMILIES[command.policy or "openvla"]
        return _Start(family, family.preset(command.preset or "nano", "official"), command.chunk_len or 8)
    folder = policy_folder(command.checkpoint)
    said = PublishedOptions(preset=command.preset, tokenizer=command.tokenizer, variant=command.variant)
    request = said.options_for(folder, command.policy)
    if request.family.name == CUSTOM:
        raise UserError(
            f"{folder} holds a policy of your own, and sft can't go on from one: it begins anew, --policy NAME."
        )
    policy = load_weights(folder, request)
    predicts = getattr(policy.config, "horizon", policy.chunk_len)
    return _Start(request.family, policy.config, command.chunk_len or predicts, folder, policy)


def _policy(command: SftCommand, start: _Start, sources: Sequence[Source], console: Console) -> AnyPolicy:
    """The policy that learns, on its device, and a line about it."""
    first, *others = requests(command, sources, start.chunk_len)
    if not start.family.instructed and len(first.instructions) > 1:
        console.print(
            f"{start.family.name} reads no instruction: to it the data's {len(first.instructions)} are one task",
            soft_wrap=True,
        )
    if start.policy is None:
        policy = start.family.fresh(first)
    else:
        policy = start.family.refit(start.policy, first)
    for request in others:
        start.family.add_robot(policy, request)
    if start.folder is not None:
        _prepare(command, start.family, policy, start.folder)
        console.print(f"begins from {source_name(start.folder)}", soft_wrap=True)
        if getattr(start.model, "delta_dims", 0):
            console.print("it predicted actions minus the state, and from here on actions as the data has them")
        if policy.resized:
            parts = ", ".join(sorted(policy.resized))
            console.print(f"for another robot's sizes, in part new and zero: {parts}", soft_wrap=True)
    return policy


def _registered(command: SftCommand, start: _Start, sources: Sequence[Source]) -> tuple[Any, _Start]:
    """A registered policy for what the data shows, and how many control steps it predicts."""
    if len({source.key for source in sources}) > 1:
        raise UserError("a policy of your own has no statistics by data set: add --statistics joint")
    own_units = sources[0].data.own_units
    policy = new_for_data(str(command.policy), data_info(sources[0]), command.seed, own_units=own_units)
    return policy, dataclasses.replace(start, chunk_len=getattr(policy, "horizon", policy.chunk_len))


def _describe(command: SftCommand, start: _Start, policy: Any, console: Console) -> None:
    """Say what learns, and bring it to its device."""
    parameters = sum(p.numel() for p in policy.parameters())
    trained = sum(p.numel() for p in policy.parameters() if p.requires_grad)
    some = f" ({trained / 1e6:.2f} M train)" if trained < parameters else ""
    size = _kind(command, policy) + (f" {_preset(command, start)}".rstrip() if start.folder is None else "")
    console.print(f"{size}: {parameters / 1e6:.2f} M parameters{some}, chunks of {start.chunk_len} steps")
    policy.to("cuda" if torch.cuda.is_available() else "cpu")


def _kind(command: SftCommand, policy: Any) -> str:
    return str(command.policy) if policy.architecture == CUSTOM else policy.architecture


def _preset(command: SftCommand, start: _Start) -> str:
    return command.preset or ("" if command.checkpoint or start.model is None else "nano")


def _prepare(command: SftCommand, family: PolicyFamily, policy: AnyPolicy, folder: Path) -> None:
    """What of a checkpoint's policy trains, and in which number format."""
    if command.train_expert_only:
        freeze: Any = getattr(policy.model, "freeze_language_model", None)
        if freeze is None:
            raise UserError(f"--train-expert-only is for pi0 and smolvla: {policy.architecture} has no action expert")
        freeze()
    has = 0 if policy.base is None else policy.base.rank
    if has and has != command.lora_rank:
        raise UserError(
            f"{folder} has LoRA adapters of rank {has}, and --lora-rank is {command.lora_rank}: give {has}, or merge "
            "them first with `embodied-rl export --layout native`"
        )
    if command.lora_rank and not has:
        family.adapt(policy, folder, command.lora_rank)
    held = "bfloat16" if command.bf16 and command.lora_rank else "float32"
    set_training(policy, held, recompute=command.gradient_checkpointing)


def _fit(
    command: SftCommand, policy: AnyPolicy, start: _Start, sources: Sequence[Source], console: Console
) -> tuple[SftResult, Targets]:
    train, val = [], []
    for source in sources:
        parts = split(source.data, start.chunk_len, validation=command.validation, seed=command.seed)
        if not len(parts[0]):
            raise UserError(f"{source.name}: no frame has an undisturbed chunk after it; choose a smaller --chunk-len")
        for found, part in zip((train, val), parts, strict=True):
            found.append(Part(part, source.key, source.weight))
    if not any(len(part.samples) for part in val):
        console.print(
            f"no validation: --validation {command.validation:g} of each instruction's episodes leaves none held out",
            soft_wrap=True,
        )
    each = [part.samples.targets() for part in train]
    targets = Targets(sum(one.total for one in each), sum(one.masked for one in each))
    for line in targets.describe():
        console.print(line, soft_wrap=True)
    measure, state = partial(_measure, policy), state_path(command.out)
    identity = _identity(command, policy, start, sources, targets)
    both = Mixture(train), Mixture(val)
    result = sft.fit(policy, *both, command, state, measure=measure, console=console, identity=identity)
    return result, targets


def _identity(
    command: SftCommand, policy: AnyPolicy, start: _Start, sources: Sequence[Source], targets: Targets
) -> dict[str, Any]:
    """What a stopped training may only go on with."""
    several = [[source.fingerprint, source.weight, list(source.places)] for source in sources[1:]]
    given = {
        "control rate": command.fps,
        "masked targets": targets.masked,
        "other data sets": several and [sources[0].weight, command.statistics, *several],
        "checkpoint": start.describe().get("checkpoint", {}).get("sha256"),
        "lora rank": command.lora_rank,
        "trained part": command.train_expert_only and "expert",
    }
    return {
        "dataset": sources[0].fingerprint,
        "policy": _kind(command, policy),
        "preset": _preset(command, start),
        "chunk_len": start.chunk_len,
        "cameras": sources[0].data.camera_names,
        "gripper": command.gripper,
        **{name: value for name, value in given.items() if value},
    }


def _measure(policy: AnyPolicy, batch: SftBatch) -> dict[str, float]:
    """Greedy decoding against the demonstration: mean distance of the actions, share of equal tokens."""
    rows = np.zeros(len(batch.instruction), dtype=np.int64)
    obs = Observation(batch.images, batch.proprio, batch.instruction)
    decided = policy.act(obs, DecisionRng(rows, rows), "greedy")
    if not decided.actions.isfinite().all():
        raise UserError("the policy's actions on held-out demonstrations are not finite: lower --lr and start anew")
    steps = decided.actions.shape[1]  # a flow policy predicts more than it executes
    mask = None if batch.action_mask is None else batch.action_mask[:, :steps]
    error = masked_steps(decided.actions.cpu() - batch.actions[:, :steps], mask)
    figures = {"action_error": float(np.abs(error.numpy()).mean())}
    if "tokens" in decided.replay:
        of_tokens: Any = policy
        right = masked_steps(decided.replay["tokens"].cpu() == of_tokens.encode(batch.actions), mask)
        figures["token_accuracy"] = float(right.float().mean())
    return figures


def _provenance(command: SftCommand, start: _Start, sources: Sequence[Source], line: str) -> dict[str, Any]:
    """What the checkpoint says of how it was made."""
    first = sources[0]
    own = {"preset": _preset(command, start), "chunk_len": start.chunk_len}
    own |= {name: getattr(command, name) for name in ("gripper", "lora_rank", "train_expert_only")}
    several: dict[str, Any] = {}
    if len(sources) > 1:
        several["datasets"] = [source.describe() for source in sources]
        several["robots"] = {source.key: source.robot() for source in sources}
        several["statistics"] = command.statistics
    said = {
        name: values.pop() if len(values := {source.data.source.get(name) for source in sources}) == 1 else None
        for name in ("suite", "renderer", "era")
    }
    states = _trained_states(start, sources)
    return {
        "command": line,
        "version": __version__,
        "seed": command.seed,
        "config": command.identity() | own,
        "dataset": first.describe(),
        **several,
        **start.describe(),
        "cameras": first.data.camera_names,
        "control_hz": first.control_hz,
        "instructions": sorted({word for source in sources for word in source.data.instruction}),
        **said,
        **({} if states is None else {TRAINED_STATES: states}),
    }


def _trained_states(start: _Start, sources: Sequence[Source]) -> dict[str, list[int]] | None:
    """Initial states that the policy has learned from, by task; None where a data set or the checkpoint is silent."""
    states = {} if start.folder is None else trained_states(read_provenance(start.folder))
    for source in sources:
        more = demonstrated_states(source.data.source)
        states = None if more is None else join_states(states, more)
    return states
