"""Trains a policy on demonstrations: the dataset, a fresh policy that fits it, imitation, the checkpoint."""

from __future__ import annotations

import dataclasses
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from embodied_rl.config.sft import SftCommand
from embodied_rl.data import lerobot
from embodied_rl.data.actions import fit_actions
from embodied_rl.data.chunks import split
from embodied_rl.data.frames import Frames
from embodied_rl.data.metadata import describe_left_out, read_metadata, short_name
from embodied_rl.errors import UserError
from embodied_rl.evaluation.overlap import TRAINED_STATES, demonstrated_states
from embodied_rl.factory.policies import FAMILIES, save_policy
from embodied_rl.policies.checkpoints.folder import read_provenance
from embodied_rl.policies.family import FreshRequest
from embodied_rl.policy import masked_steps
from embodied_rl.real_robot.core.views_of_training import small_view
from embodied_rl.rng import DecisionRng
from embodied_rl.sim.mujoco.vec_env import CAMERAS, CONTROL_HZ
from embodied_rl.training import sft
from embodied_rl.types import Observation
from embodied_rl.utils.console import LastingConsole
from embodied_rl.utils.lock import locked
from embodied_rl.utils.words import counted, same_rate
from embodied_rl.version import __version__

if TYPE_CHECKING:
    from rich.console import Console

    from embodied_rl.data.chunks import SftBatch, Targets
    from embodied_rl.data.lerobot import Demonstrations
    from embodied_rl.factory.policies import AnyPolicy
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
    """Raise UserError unless `--out` holds what this command wrote from this dataset; a kill may have come after it."""
    wrote = read_provenance(command.out)
    same = wrote.get("command") == line
    if not (same and wrote["dataset"]["sha256"] == lerobot.fingerprint(command.dataset)):
        raise UserError(f"{command.out} already exists; choose another --out or remove it")


def _train(command: SftCommand, line: str) -> bool:
    console = LastingConsole()
    data = lerobot.load(command.dataset, _cameras(command))
    if data.source.get("split") == "heldout":
        raise UserError(
            f"{command.dataset} starts from held-out states, which evaluation needs unseen; collect with --split train"
        )
    fingerprint = lerobot.fingerprint(command.dataset)
    console.print(
        f"{command.dataset}: {counted(len(data), 'episode')}, {counted(len(data.images), 'frame')}, "
        f"{len(set(data.instruction))} instructions, cameras {', '.join(data.camera_names)}, sha256 {fingerprint[:12]}",
        soft_wrap=True,
    )
    if no_cameras := data.no_cameras:
        console.print(f"left out, no colour cameras: {describe_left_out(no_cameras)}", soft_wrap=True)
    control_hz = _control_rate(command, data, console)
    if empty := data.info["total_episodes"] - len(data):
        console.print(f"{empty} episodes without frames are left out")
    if cut := fit_actions(data, command.gripper):
        console.print(cut, soft_wrap=True)
    if isinstance(data.images, Frames):
        data.images.cache_bytes = int(command.image_cache_gib * 2**30)
    policy = _fresh_policy(command, data)
    parameters = sum(p.numel() for p in policy.parameters())
    console.print(
        f"{command.policy} {command.preset}: {parameters / 1e6:.2f} M parameters, chunks of {command.chunk_len} steps"
    )
    started = time.monotonic()
    result, targets = _fit(command, policy, data, fingerprint, console)
    state = state_path(command.out)
    if not result.finished:
        console.print(
            f"stopped at step {result.step} of {command.steps}; saved in {state}. The same command goes on.",
            soft_wrap=True,
        )
        return False
    about = {
        "control_hz": control_hz,
        "views": [small_view(picture) for picture in data.images[np.array([0])][0]],
        "targets": dataclasses.asdict(targets),
        "last_session_seconds": round(time.monotonic() - started, 1),
    }
    _save(policy, command, data, fingerprint, result, line, about)
    state.unlink()
    console.print(f"wrote {command.out}")
    return True


def state_path(out: Path) -> Path:
    """Where the training state stands until the checkpoint is finished."""
    return out.with_name(out.name + ".sft.pt")


def _fresh_policy(command: SftCommand, data: Demonstrations) -> AnyPolicy:
    family, source = FAMILIES[command.policy], data.source
    model = family.preset(command.preset, "official")
    _check_fit(command, data, model)
    request = FreshRequest(
        preset=command.preset,
        chunk_len=command.chunk_len,
        seed=command.seed,
        instructions=list(dict.fromkeys(data.instruction)),
        state=data.state,
        action=data.action,
        unit_actions=bool(source),  # our own suites
        unnorm_key=source.get("suite", "default"),
    )
    return family.fresh(request)


def _cameras(command: SftCommand) -> tuple[str, ...]:
    """The cameras to read in the simulator's order, the arm's own last; UserError where their names do not say it."""
    meta = read_metadata(command.dataset, command.cameras)
    found = [short_name(camera) for camera in meta.cameras]
    ordered = tuple(sorted(found, key=_on_arm))
    if command.cameras:
        if set(found) <= set(CAMERAS) and tuple(found) != ordered:
            raise UserError(f"--cameras {' '.join(found)}: the simulator gives {', '.join(CAMERAS)}: keep its order")
        return tuple(found)
    if len(found) > 1 and (len(found) > 2 or sum(map(_on_arm, found)) != 1):
        raise UserError(
            f"{command.dataset} has the cameras {', '.join(found)}, the simulator {', '.join(CAMERAS)}: name those to "
            f"learn from in the simulator's order, such as --cameras {' '.join(found[:2])}"
        )
    return ordered


def _on_arm(camera: str) -> bool:
    return "wrist" in camera.lower() or "hand" in camera.lower()


def _check_fit(command: SftCommand, data: Demonstrations, model: Any) -> None:
    """UserError unless the data set has the images and vectors that the preset `model` takes."""
    _, views, height, width, _ = data.images.shape
    size, need = model.image_size, f"preset {command.preset} needs"
    if (height, width) != (size, size):
        raise UserError(
            f"{command.dataset} has images of {height} x {width} pixels, {need} {size} x {size}; resize them, or "
            f"collect with --image-size {size}"
        )
    if views != model.num_cameras:
        raise UserError(
            f"{command.dataset}: {counted(views, 'camera')} ({', '.join(data.camera_names)}), {need} "
            f"{model.num_cameras}: choose with --cameras"
        )
    for name, found, wanted in (
        ("actions", data.action.shape[1], model.action_dim),
        ("states", data.state.shape[1], model.proprio_dim),
    ):
        if found != wanted:
            raise UserError(f"{command.dataset} has {name} of {found} numbers, {need} {wanted}")


def _control_rate(command: SftCommand, data: Demonstrations, console: Console) -> float:
    """The rate in Hz at which the demonstrator acted; UserError where it is not the simulator's and nobody says so."""
    said = float(data.info["fps"])
    rate = said if command.fps is None else command.fps
    same = same_rate(rate, CONTROL_HZ)
    if not same and command.fps is None:
        raise UserError(
            f"{command.dataset} has {said:g} frames a second, the simulator {CONTROL_HZ:g} control steps: its motions "
            f"would be too {'fast' if said < CONTROL_HZ else 'slow'} there. Say the true rate with --fps: "
            f"{CONTROL_HZ:g} where info.json is wrong, {said:g} for a robot that acts so often"
        )
    words = f"{rate:g} actions a second"
    if command.fps is not None and not same_rate(rate, said):
        words += f" (--fps; info.json says {said:g})"
    other = f"; the simulator takes {CONTROL_HZ:g}: eval and train will refuse this policy"
    console.print(words + (", as the simulator" if same else other), soft_wrap=True)
    return rate


def _fit(
    command: SftCommand, policy: AnyPolicy, data: Demonstrations, fingerprint: str, console: Console
) -> tuple[SftResult, Targets]:
    policy.to("cuda" if torch.cuda.is_available() else "cpu")
    train, val = split(data, command.chunk_len, validation=command.validation, seed=command.seed)
    if not len(train):
        raise UserError(f"{command.dataset}: no frame has an undisturbed chunk after it; choose a smaller --chunk-len")
    if not len(val):
        console.print(
            f"no validation: --validation {command.validation:g} of each instruction's episodes leaves none held out",
            soft_wrap=True,
        )
    targets = train.targets()
    for line in targets.describe():
        console.print(line, soft_wrap=True)
    identity = {
        "dataset": fingerprint,
        "policy": command.policy,
        "preset": command.preset,
        "chunk_len": command.chunk_len,
        "cameras": data.camera_names,
        "gripper": command.gripper,
        **({"control rate": command.fps} if command.fps else {}),
        **({"masked targets": targets.masked} if targets.masked else {}),
    }
    measure, state = partial(_measure, policy), state_path(command.out)
    result = sft.fit(policy, train, val, command, state, measure=measure, console=console, identity=identity)
    return result, targets


def _measure(policy: AnyPolicy, batch: SftBatch) -> dict[str, float]:
    """Greedy decoding against the demonstration: mean distance of the actions, share of equal tokens."""
    rows = np.zeros(len(batch.instruction), dtype=np.int64)
    obs = Observation(batch.images, batch.proprio, batch.instruction)
    decided = policy.act(obs, DecisionRng(rows, rows), "greedy")
    if not decided.actions.isfinite().all():
        raise UserError("the policy's actions on held-out demonstrations are not finite: lower --lr and start anew")
    error = masked_steps(decided.actions.cpu() - batch.actions, batch.action_mask)
    figures = {"action_error": float(np.abs(error.numpy()).mean())}
    if "tokens" in decided.replay:
        of_tokens: Any = policy
        right = masked_steps(decided.replay["tokens"].cpu() == of_tokens.encode(batch.actions), batch.action_mask)
        figures["token_accuracy"] = float(right.float().mean())
    return figures


def _save(
    policy: AnyPolicy,
    command: SftCommand,
    data: Demonstrations,
    fingerprint: str,
    result: SftResult,
    line: str,
    about: dict[str, Any],
) -> None:
    states = demonstrated_states(data.source)
    own = {name: getattr(command, name) for name in ("preset", "chunk_len", "gripper")}
    save_policy(
        policy,
        command.out,
        {
            "command": line,
            "version": __version__,
            "seed": command.seed,
            "config": command.identity() | own,
            "dataset": {
                "path": str(command.dataset),
                "sha256": fingerprint,
                "episodes": len(data),
                "frames": len(data.images),
                "collected": data.source,
            },
            "cameras": data.camera_names,
            "instructions": sorted(set(data.instruction)),
            "suite": data.source.get("suite"),
            "renderer": data.source.get("renderer"),
            "era": data.source.get("era"),
            **about,
            "history": result.history,
            **({} if states is None else {TRAINED_STATES: states}),
        },
    )
