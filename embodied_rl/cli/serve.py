"""`embodied-rl serve`: answers robots' observations over the network, in openpi's protocol."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from embodied_rl.cli.parse import parse, wants_help
from embodied_rl.errors import UserError
from embodied_rl.evaluation.detector import load_detector
from embodied_rl.factory.policies import CheckpointOptions
from embodied_rl.policy import ActMode
from embodied_rl.real_robot.server.limits import ServerLimits

TOKEN = "EMBODIED_RL_TOKEN"
USAGE = """\
usage: embodied-rl serve [CHECKPOINT] [options]

Serve a policy to robots: observations come over a websocket, chunks of actions
go back. openpi's clients work as they are.

  CHECKPOINT      the folder of a run or checkpoint, OWNER/NAME of a published
                  one, or shipped, the small policy in the package
"""
_DEFAULT = ServerLimits()


@dataclass(frozen=True, kw_only=True)
class ServeCommand(CheckpointOptions):
    """Serve a policy to robots over a websocket."""

    host: str = "127.0.0.1"
    """Address to listen at. 127.0.0.1 is reached by programs of this machine only, 0.0.0.0 by every machine that
    reaches this one: then set a token."""
    port: int = 8000
    """TCP port; 0 takes a free one and prints it."""
    token: str | None = None
    """What clients must show (None: the environment variable EMBODIED_RL_TOKEN, which other users of this machine
    cannot see; without either everybody is let in)."""
    mode: ActMode = "greedy"
    """Take the most likely action (greedy), or sample at the checkpoint's temperature."""
    seed: int = 0
    """Seed of what is drawn for clients that send none."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the policy is; auto takes a GPU if there is one."""
    compile: bool = False
    """Act through torch.compile: `ready` comes later, and numbers round differently. On a GPU CUDA graphs."""
    images: Literal["as_rendered", "openvla", "openpi", "lerobot", "rlinf"] | None = None
    """How images of another size are brought to the policy's (None: as it was trained)."""
    mirror: bool = False
    """Swap left and right of each picture first: for clients that turn LIBERO's frames by 180 degrees, as openpi's
    example does, and a policy that was trained on this project's own upright frames."""
    detector: Path | None = None
    """A failure detector of this policy (a file of `watch`): each answer says how far the observation is from what was
    demonstrated, and the bridge of `deploy` asks for a person. An instruction that it does not know is refused."""
    max_clients: int = _DEFAULT.max_clients
    """Connections at the same time."""
    max_message_mib: int = _DEFAULT.max_message_bytes >> 20
    """Largest request; two images of 1920 x 1080 take 12 MiB."""
    max_batch: int = _DEFAULT.max_batch
    """Requests of different clients that one call of the policy decides; with 1 no answer's rounding depends on other
    clients."""
    max_batch_delay_ms: float = _DEFAULT.max_batch_delay_ms
    """How long a request waits for those of other clients."""
    deadline_ms: float = _DEFAULT.deadline_ms
    """A request that waits longer for its turn is refused: its observation is stale."""


def main(argv: list[str]) -> int:
    """Run the command."""
    words = list(argv)
    if words and not words[0].startswith("-") and not wants_help(words):
        if any(word.partition("=")[0] == "--checkpoint" for word in words):
            raise UserError(f"embodied-rl serve: '{words[0]}' and --checkpoint both name the policy: give one.")
        words = ["--checkpoint", *words]
    command = parse(ServeCommand, words, "serve", usage=USAGE)
    _check(command)
    token = command.token if command.token is not None else os.environ.get(TOKEN) or None
    if token is not None and not (token.isascii() and token.isprintable() and token.strip() == token and token):
        raise UserError("the token must be printable ASCII without spaces around it.")
    limits = ServerLimits(
        max_clients=command.max_clients,
        max_message_bytes=command.max_message_mib << 20,
        max_batch=command.max_batch,
        max_batch_delay_ms=command.max_batch_delay_ms,
        deadline_ms=command.deadline_ms,
    )
    from embodied_rl.jobs.serve import ServeRequest, run  # torch, only now

    run(
        ServeRequest(
            options=command,
            host=command.host,
            port=command.port,
            token=token,
            mode=command.mode,
            seed=command.seed,
            device=command.device,
            compile=command.compile,
            images=command.images,
            mirror=command.mirror,
            limits=limits,
            detector=command.detector,
        )
    )
    return 0


def _check(command: ServeCommand) -> None:
    bounds = {
        "port": (0, 65535),
        "seed": (0, 2**63 - 1),
        "max_clients": (1, 1024),
        "max_message_mib": (1, 256),
        "max_batch": (1, 256),
        "max_batch_delay_ms": (0, 1000),
        "deadline_ms": (1, 3_600_000),
    }
    for name, (least, most) in bounds.items():
        value = getattr(command, name)
        if not least <= value <= most:
            raise UserError(f"--{name.replace('_', '-')} must lie in {least} to {most}, got {value}.")
    if command.detector is not None:
        load_detector(command.detector)  # what is no detector is refused before a policy is loaded
