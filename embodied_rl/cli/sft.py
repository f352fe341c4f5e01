"""`embodied-rl sft DATASET --out DIR`: train a policy on demonstrations (imitation)."""

from __future__ import annotations

import dataclasses
import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from embodied_rl.cli.parse import parse
from embodied_rl.config.sft import SftConfig
from embodied_rl.errors import UserError, suggest
from embodied_rl.utils.lock import locked
from embodied_rl.utils.output import try_output
from embodied_rl.utils.words import counted, same_rate

if TYPE_CHECKING:
    from rich.console import Console

    from embodied_rl.data.chunks import SftBatch, Targets
    from embodied_rl.data.lerobot import Demonstrations
    from embodied_rl.factory.policies import AnyPolicy
    from embodied_rl.training.sft import SftResult

POLICIES = ("openvla", "openvla_oft", "pi0", "smolvla")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SftCommand(SftConfig):
    """Train a policy on demonstrations in the LeRobot v3 layout.

    A stopped run (Ctrl-C, kill) goes on when the same command is given again.
    """

    dataset: Annotated[Path, tyro.conf.Positional]
    """Folder of the dataset, as `embodied-rl collect` makes it."""
    out: Path
    """Folder of the checkpoint; it must not exist yet."""
    policy: str = "openvla"
    """Kind of policy: openvla, openvla_oft, pi0 or smolvla."""
    preset: str = "nano"
    """Size of the policy: nano, tiny or 7b; of pi0 nano, tiny, nano_pi05 or tiny_pi05; of smolvla nano."""
    chunk_len: int = 8
    """Control steps that the policy decides at once (K), 1 to 1024."""
    cameras: tuple[str, ...] = ()
    """Cameras of the dataset in the order in which the policy sees them, the third-person view first (none given: two
    whose names say it, the one with wrist or hand in its name last)."""
    gripper: Literal["auto", "signed", "one_opens", "one_closes"] = "auto"
    """What the last action means: signed: -1 opens, 1 closes; one_opens, one_closes: 0 to 1; auto: signed, and a
    dataset without numbers below 0 is refused."""
    fps: float | None = None
    """The data set's true control rate, in Hz, where info.json is wrong about it (it is for many published ones), or
    where it is not the simulator's (20). The policy learns to decide so many actions a second."""
    image_cache_gib: float = 4.0
    """Memory for decoded images; those beyond are decoded again when needed. The result does not depend on it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.chunk_len <= 1024:
            raise UserError(f"--chunk-len must be from 1 to 1024, got {self.chunk_len}")
        if self.fps is not None and not 0 < self.fps <= 10_000:
            raise UserError(f"--fps must be a number above 0, up to 10000, got {self.fps}")
        if not 0 <= self.image_cache_gib < 2**20:
            raise UserError(f"--image-cache-gib must be a number of GiB, 0 or above, got {self.image_cache_gib}")


def main(argv: list[str]) -> int:
    """Run the command; 0 when the checkpoint is written, now or before; 130 when Ctrl-C stopped it."""
    command = parse(SftCommand, argv, "sft")
    if command.policy not in POLICIES:
        raise UserError(f"unknown policy '{command.policy}'.{suggest(command.policy, POLICIES)}")
    try_output("--out", command.out)
    with locked(command.out.with_name(command.out.name + ".sft.lock"), f"training {command.out}"):
        if command.out.exists():
            _check_done(command, argv)
            state_path(command.out).unlink(missing_ok=True)
            print(f"{command.out} is done: this command wrote it before")
            return 0
        return _run(command, argv)


def _check_done(command: SftCommand, argv: list[str]) -> None:
    """Raise UserError unless `--out` holds what this command wrote from this dataset; a kill may have come after it."""
    from embodied_rl.data import lerobot
    from embodied_rl.policies.checkpoints.folder import read_provenance

    wrote = read_provenance(command.out)
    same = wrote.get("command") == _words(argv)
    if not (same and wrote["dataset"]["sha256"] == lerobot.fingerprint(command.dataset)):
        raise UserError(f"{command.out} already exists; choose another --out or remove it")


def _words(argv: list[str]) -> str:
    return shlex.join(["embodied-rl", "sft", *argv])


def _run(command: SftCommand, argv: list[str]) -> int:
    import numpy as np

    from embodied_rl.data import lerobot  # after the checks: a typing error should not wait for torch
    from embodied_rl.data.actions import fit_actions
    from embodied_rl.data.frames import Frames
    from embodied_rl.data.metadata import describe_left_out
    from embodied_rl.real_robot.core.views_of_training import small_view
    from embodied_rl.utils.console import LastingConsole

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
        return 130
    about = {
        "control_hz": control_hz,
        "views": [small_view(picture) for picture in data.images[np.array([0])][0]],
        "targets": dataclasses.asdict(targets),
        "last_session_seconds": round(time.monotonic() - started, 1),
    }
    _save(policy, command, data, fingerprint, result, argv, about)
    state.unlink()
    console.print(f"wrote {command.out}")
    return 0


def state_path(out: Path) -> Path:
    """Where the training state stands until the checkpoint is finished."""
    return out.with_name(out.name + ".sft.pt")


def _fresh_policy(command: SftCommand, data: Demonstrations) -> AnyPolicy:
    from embodied_rl.factory.policies import FAMILIES
    from embodied_rl.policies.family import FreshRequest

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
    from embodied_rl.data.metadata import read_metadata, short_name
    from embodied_rl.sim.mujoco.vec_env import CAMERAS

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
    from embodied_rl.sim.mujoco.vec_env import CONTROL_HZ

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
    import numpy as np
    import torch

    from embodied_rl.data.chunks import split
    from embodied_rl.policy import masked_steps
    from embodied_rl.rng import DecisionRng
    from embodied_rl.training import sft
    from embodied_rl.types import Observation

    def measure(batch: SftBatch) -> dict[str, float]:
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
    result = sft.fit(
        policy, train, val, command, state_path(command.out), measure=measure, console=console, identity=identity
    )
    return result, targets


def _save(
    policy: AnyPolicy,
    command: SftCommand,
    data: Demonstrations,
    fingerprint: str,
    result: SftResult,
    argv: list[str],
    about: dict[str, Any],
) -> None:
    from embodied_rl.evaluation.overlap import TRAINED_STATES, demonstrated_states
    from embodied_rl.factory.policies import save_policy
    from embodied_rl.version import __version__

    states = demonstrated_states(data.source)
    own = {name: getattr(command, name) for name in ("preset", "chunk_len", "gripper")}
    save_policy(
        policy,
        command.out,
        {
            "command": _words(argv),
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
