"""`embodied-rl deploy`: a policy on an arm under ROS 2, or on its twin."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from embodied_rl.cli.parse import parse, wants_help
from embodied_rl.errors import UserError
from embodied_rl.evaluation.detector import load_detector
from embodied_rl.policies.checkpoints.hub import resolve
from embodied_rl.real_robot.core.robot import robot_path
from embodied_rl.real_robot.ros2.environment import enter, ros_environment
from embodied_rl.utils.output import try_file

TWIN = "twin"
USAGE = """\
usage: embodied-rl deploy [CHECKPOINT] --robot twin [options]
       embodied-rl deploy [CHECKPOINT] --robot ARM --instruction WORDS [options]

Run a policy on an arm under ROS 2: starts the policy server and the bridge,
goes through the checks before the arm is armed, and shows what happens.

  CHECKPOINT      the folder of a run or checkpoint, OWNER/NAME of a published
                  one, or shipped, the small policy in the package
  --robot twin    a simulated arm on the same topics: runs episodes and reports
                  success
  --robot ARM     fr3, ur5e, aloha (two arms), generic or your own file; keys
                  arm, start and stop it
"""


@dataclass(frozen=True, kw_only=True)
class DeployCommand:
    """Run a policy on an arm under ROS 2."""

    checkpoint: str | None = None
    """What `serve` takes: a run's folder, OWNER/NAME or shipped (None: shipped, or with --server what it has)."""
    robot: str = TWIN
    """twin, a shipped arm (fr3, ur5e, generic; aloha: two arms), or the path of your arm's file."""
    instruction: str | None = None
    """What a real arm shall do; a twin's tasks have their own."""
    server: str | None = None
    """HOST:PORT of a policy server that runs already (None: one is started here)."""
    detector: Path | None = None
    """A failure detector of this policy (a file of `watch`). At its alarm a person is asked for, and the arm holds
    where nobody takes it over within 3 s. The twin runs the tasks that it was calibrated for."""
    dry_run: bool = False
    """Decide every set point and send none: the arm is taken to be where it was asked to be."""
    shadow: bool = False
    """Ask the policy while something else moves the arm; it cannot be armed."""
    horizon: int = 2
    """Control steps after which the policy is asked again, at most a chunk."""
    overlap: Literal["blend", "newest", "ensemble", "realtime"] = "blend"
    """What happens where chunks overlap; realtime: a flow policy goes on from what is planned."""
    requests: int = 1
    """Questions that may be on their way at once: more for long latencies."""
    latency_ms: float = 0.0
    """Added to each answer, to see what a network would do."""
    suite: str = "tabletop_spatial"
    """The twin's tasks."""
    episodes: int = 10
    """The twin's episodes, the suite's tasks in turn, from held-out states."""
    friction: float = 1.0
    """Factor on the twin's friction."""
    looks: tuple[Literal["camera", "light", "texture"], ...] = ()
    """What looks different from training in each of the twin's episodes."""
    camera_latency_ms: float = 0.0
    """How late the twin's images come."""
    camera_drop: float = 0.0
    """Share of the twin's images that never come."""
    speed: float = 1.0
    """The twin's seconds in a second: below 1 where the computer is too busy for real time."""
    record: str = "auto"
    """The recording, an MCAP file that does not exist yet; auto: runs/deploy/DATE-TIME.mcap; none: nothing."""
    training_view: str | None = None
    """A LeRobot data set that the policy was trained on (a folder, or OWNER/NAME on the Hugging Face hub): its first
    images beside what the cameras see, in a PNG."""
    json: Path | None = None
    """Write the twin's report there."""
    domain: int | None = None
    """ROS_DOMAIN_ID (None: the environment's for an arm, one of its own for a twin)."""


def main(argv: list[str]) -> int:
    """Run the command."""
    words = list(argv)
    if words and not words[0].startswith("-") and not wants_help(words):
        words = ["--checkpoint", *words]
    command = parse(DeployCommand, words, "deploy", usage=USAGE)
    _check(command)
    twin = command.robot == TWIN
    domain = command.domain if command.domain is not None or not twin else 1 + os.getpid() % 100
    enter("embodied_rl", ["deploy", *argv], ros_environment(domain=domain, loopback=twin))
    from embodied_rl.jobs.deploy import run

    return run(command, ros_environment(domain=domain, loopback=twin))


def _check(command: DeployCommand) -> None:
    robot_path(command.robot)
    bounds = {
        "horizon": (1, 1000),
        "requests": (1, 16),
        "latency_ms": (0, 10_000),
        "episodes": (1, 10_000),
        "camera_latency_ms": (0, 10_000),
        "camera_drop": (0, 1),
        "speed": (0.01, 1),
        "friction": (0.01, 10),
    }
    for name, (least, most) in bounds.items():
        value = getattr(command, name)
        if not least <= value <= most:
            raise UserError(f"--{name.replace('_', '-')} must lie in {least} to {most}, got {value}.")
    if command.domain is not None and not 0 <= command.domain <= 232:
        raise UserError(f"--domain must lie in 0 to 232, got {command.domain}.")
    if command.dry_run and command.shadow:
        raise UserError("--dry-run and --shadow: choose one.")
    if command.server is not None and not command.server.rpartition(":")[2].isdigit():
        raise UserError(f"--server is HOST:PORT, got '{command.server}'.")
    if command.server is not None and command.checkpoint is not None:
        raise UserError(f"--server has its own policy: leave out '{command.checkpoint}', or --server to serve it here.")
    if command.json is not None:
        try_file("--json", command.json)
    _check_robot(command)
    _check_detector(command)
    _check_record(command.record)


def _check_robot(command: DeployCommand) -> None:
    """What is for the twin alone, and what for a real arm."""
    twin = command.robot == TWIN
    if twin and command.instruction:
        raise UserError("--instruction is for a real arm: name it with --robot. A twin's tasks have their own.")
    if not twin and not command.instruction:
        raise UserError("say what the arm shall do: --instruction 'open the drawer'.")
    if not twin:
        _refuse_twins_options(command)
    view = command.training_view
    if twin and view is not None:
        raise UserError("--training-view is for a real arm: the twin's views are drawn by its simulator.")
    if view is not None and not (resolve(view, "dataset") / "meta" / "info.json").is_file():
        raise UserError(f"--training-view: {view} is no LeRobot data set.")


def _check_detector(command: DeployCommand) -> None:
    if command.detector is None:
        return
    if command.server is not None:
        raise UserError("--detector belongs to the policy's server: start serve there with it, and leave it out here.")
    if command.dry_run or command.shadow:
        raise UserError("--detector judges what the policy does: leave it out with --dry-run and --shadow.")
    detector = load_detector(command.detector)
    if command.instruction is not None:
        detector.limit(command.instruction)


def _refuse_twins_options(command: DeployCommand) -> None:
    if command.speed != 1.0:
        raise UserError("--speed is for the twin: a real arm's time cannot be changed.")
    fresh = DeployCommand()
    for name in ("suite", "episodes", "friction", "looks", "camera_latency_ms", "camera_drop", "json"):
        if getattr(command, name) != getattr(fresh, name):
            raise UserError(f"--{name.replace('_', '-')} is for the twin: leave it out for --robot {command.robot}.")


def _check_record(record: str) -> None:
    if record == "none":
        return
    if importlib.util.find_spec("mcap") is None:
        raise UserError("recording needs mcap: pip install 'embodied-rl[record]', or --record none.")
    if record != "auto":
        if Path(record).exists():
            raise UserError(f"--record: {record} exists already; choose another name.")
        try_file("--record", Path(record))
