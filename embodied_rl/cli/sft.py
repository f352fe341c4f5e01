"""`embodied-rl sft DATASET --out DIR`: train a policy on demonstrations (imitation)."""

from __future__ import annotations

import dataclasses
import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from embodied_rl.cli.parse import parse
from embodied_rl.config.sft import SftConfig
from embodied_rl.errors import UserError, suggest
from embodied_rl.utils.lock import locked

if TYPE_CHECKING:
    from rich.console import Console

    from embodied_rl.data.chunks import SftBatch
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
    """Control steps that the policy decides at once (K)."""


def main(argv: list[str]) -> int:
    """Run the command; 0 when the checkpoint is written, now or before; 130 when Ctrl-C stopped it."""
    command = parse(SftCommand, argv, "sft")
    if command.policy not in POLICIES:
        raise UserError(f"unknown policy '{command.policy}'.{suggest(command.policy, POLICIES)}")
    try:
        command.out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--out {command.out}: cannot make its folder ({error.strerror})") from error
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
    from embodied_rl.data import lerobot  # after the checks: a typing error should not wait for torch
    from embodied_rl.utils.console import LastingConsole

    console = LastingConsole()
    data = lerobot.load(command.dataset)
    if _source(data).get("split") == "heldout":
        raise UserError(
            f"{command.dataset} starts from held-out states, which evaluation needs unseen; collect with --split train"
        )
    fingerprint = lerobot.fingerprint(command.dataset)
    console.print(
        f"{command.dataset}: {len(data)} episodes, {len(data.images)} frames, "
        f"{len(set(data.instruction))} instructions, sha256 {fingerprint[:12]}",
        soft_wrap=True,
    )
    policy = _fresh_policy(command, data)
    parameters = sum(p.numel() for p in policy.parameters())
    console.print(
        f"{command.policy} {command.preset}: {parameters / 1e6:.2f} M parameters, chunks of {command.chunk_len} steps"
    )
    started = time.monotonic()
    result = _fit(command, policy, data, fingerprint, console)
    state = state_path(command.out)
    if not result.finished:
        console.print(
            f"stopped at step {result.step} of {command.steps}; saved in {state}. The same command goes on.",
            soft_wrap=True,
        )
        return 130
    _save(policy, command, data, fingerprint, result, argv, time.monotonic() - started)
    state.unlink()
    console.print(f"wrote {command.out}")
    return 0


def state_path(out: Path) -> Path:
    """Where the training state stands until the checkpoint is finished."""
    return out.with_name(out.name + ".sft.pt")


def _fresh_policy(command: SftCommand, data: Demonstrations) -> AnyPolicy:
    from embodied_rl.factory.policies import FAMILIES
    from embodied_rl.policies.family import FreshRequest

    family, source = FAMILIES[command.policy], _source(data)
    model = family.preset(command.preset, "official")
    _check_images(command, data, model.image_size, model.num_cameras)
    request = FreshRequest(
        preset=command.preset,
        chunk_len=command.chunk_len,
        seed=command.seed,
        instructions=data.instruction,
        state=data.state,
        action=data.action,
        unit_actions=bool(source),  # our own suites
        unnorm_key=source.get("suite", "default"),
    )
    return family.fresh(request)


def _check_images(command: SftCommand, data: Demonstrations, size: int, cameras: int) -> None:
    if data.images.shape[2] != size:
        raise UserError(
            f"{command.dataset} has images of {data.images.shape[2]} pixels, preset {command.preset} needs "
            f"{size}; collect with --image-size {size}"
        )
    if len(data.cameras) != cameras:
        raise UserError(f"{command.dataset} has {len(data.cameras)} cameras, preset {command.preset} needs {cameras}")


def _fit(command: SftCommand, policy: AnyPolicy, data: Demonstrations, fingerprint: str, console: Console) -> SftResult:
    import numpy as np
    import torch

    from embodied_rl.data.chunks import split
    from embodied_rl.rng import DecisionRng
    from embodied_rl.training import sft
    from embodied_rl.types import Observation

    def measure(batch: SftBatch) -> dict[str, float]:
        """Greedy decoding against the demonstration: mean distance of the actions, share of equal tokens."""
        rows = np.zeros(len(batch.instruction), dtype=np.int64)
        obs = Observation(batch.images, batch.proprio, batch.instruction)
        decided = policy.act(obs, DecisionRng(rows, rows), "greedy")
        if not np.isfinite(decided.actions).all():
            raise UserError("the policy's actions on held-out demonstrations are not finite: lower --lr and start anew")
        figures = {"action_error": float(np.abs(decided.actions - batch.actions.numpy()).mean())}
        if "tokens" in decided.replay:
            of_tokens: Any = policy
            right = decided.replay["tokens"].cpu() == of_tokens.encode(batch.actions)
            figures["token_accuracy"] = float(right.float().mean())
        return figures

    policy.to("cuda" if torch.cuda.is_available() else "cpu")
    train, val = split(data, command.chunk_len, validation=command.validation, seed=command.seed)
    identity = {
        "dataset": fingerprint,
        "policy": command.policy,
        "preset": command.preset,
        "chunk_len": command.chunk_len,
    }
    return sft.fit(
        policy, train, val, command, state_path(command.out), measure=measure, console=console, identity=identity
    )


def _save(
    policy: AnyPolicy,
    command: SftCommand,
    data: Demonstrations,
    fingerprint: str,
    result: SftResult,
    argv: list[str],
    seconds: float,
) -> None:
    from embodied_rl import __version__
    from embodied_rl.evaluation.overlap import TRAINED_STATES, demonstrated_states
    from embodied_rl.factory.policies import save_policy

    states = demonstrated_states(_source(data))
    save_policy(
        policy,
        command.out,
        {
            "command": _words(argv),
            "version": __version__,
            "seed": command.seed,
            "config": command.identity() | {"preset": command.preset, "chunk_len": command.chunk_len},
            "dataset": {
                "path": str(command.dataset),
                "sha256": fingerprint,
                "episodes": len(data),
                "frames": len(data.images),
                "collected": _source(data),
            },
            "suite": _source(data).get("suite"),
            "renderer": _source(data).get("renderer"),
            "last_session_seconds": round(seconds, 1),
            "history": result.history,
            **({} if states is None else {TRAINED_STATES: states}),
        },
    )


def _source(data: Demonstrations) -> dict[str, Any]:
    """What `collect` recorded about itself; empty for a dataset from elsewhere."""
    from embodied_rl.data.lerobot import NAMESPACE

    return data.info.get(NAMESPACE, {})
