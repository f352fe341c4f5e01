"""Options of `embodied-rl collect`; imports nothing heavy."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from embodied_rl.errors import UserError

AUTO = "auto"


@dataclass(frozen=True, kw_only=True)
class CollectCommand:
    """Record demonstrations of a scripted expert, or of a policy, in the LeRobot v3 layout.

    Only successful episodes are kept unless told. A stopped collection (Ctrl-C, kill) goes on when the same command is
    given again; the result does not depend on the number of workers.
    """

    suite: Annotated[str, tyro.conf.Positional]
    """A built-in suite (tabletop_spatial, tabletop_object, tabletop_goal, tabletop_long), tabletop for all of them, or
    an installed one of LIBERO's or LIBERO-PRO's (libero_spatial, libero_10, libero_object_swap, ...), or one that shows
    images and a state (metaworld, maniskill, gymnasium), with --task, or one of your own."""
    out: Path
    """Folder of the dataset; it must not exist yet."""
    tasks: tuple[str, ...] = ()
    """Short names of the tasks to record (none given: all, or those that the expert was trained on where the suite is
    too large); --task NAME names one."""
    episodes_per_task: int = 50
    """Attempts at each task; initial states are taken in turn."""
    image_size: int | None = None
    """Height and width of the camera images, in pixels (None: 64). Those of gymnasium's envs and of your own stay as
    they are."""
    cameras: tuple[str, ...] = ()
    """Images of a gymnasium env to record, in this order, as `--env.cameras` of `train` (none given: as the expert was
    trained, or all)."""
    instruction: str | None = None
    """What is to be done in a gymnasium env, in place of what it says, as `--env.instruction` of `train`."""
    expert: str = "scripted"
    """Who acts: scripted, the expert of the suite where it has one, or a run, a checkpoint or OWNER/NAME on the Hugging
    Face hub whose policy fits: one that reads a state may teach those that see."""
    keep: Literal["successes", "all"] = "successes"
    """all: keep failed attempts too, each marked; `sft` refuses such a data set."""
    dart_noise_rate: float | None = None
    """Chance, a control step, that the hand is pushed off course for 3 to 8 steps; labels stay the expert's own (None:
    0.04, and 0 in gymnasium's envs and your own)."""
    workers: int = os.cpu_count() or 1
    """Processes that run episodes."""
    seed: int = 0
    """Seed of the pushes and of the episodes."""
    split: Literal["auto", "fresh", "train", "heldout"] = "auto"
    """Initial states to start from: fresh ones, drawn anew for each episode, or the suite's own train or heldout ones.
    auto: fresh for the built-in suites, train for others, which have no fresh ones. `sft` refuses a dataset of held-out
    states: evaluation needs them unseen."""
    protocol: str = AUTO
    """Whose way to run an episode and make its images, as in `train`; auto: native for the built-in suites, libero
    (10 settle steps first) for LIBERO's."""
    render_quality: Literal["auto", "exact", "fast"] = "auto"
    """How the images are drawn, as `--env.render-quality` of `train`: exact on LIBERO's suites unless told, fast on
    the built-in ones."""
    physics_version: Literal["auto", "published", "current", "mujoco-3.3", "mujoco-2.3.7"] = "auto"
    """Whose contacts and texture colours LIBERO's scenes have, as `--env.physics-version` of `train`."""
    video: bool = False
    """Also write a video of the first attempt at each task, for people to watch, into OUT_videos."""

    def __post_init__(self) -> None:
        most = {"episodes_per_task": 100_000, "image_size": 2048, "workers": 1024}
        for name, low, high in (*((name, 1, high) for name, high in most.items()), ("seed", 0, 2**63 - 1)):
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                flag = f"--{name.replace('_', '-')}"
                raise UserError(f"{flag} must be at least {low} and at most {high}, got {value}")
        if self.dart_noise_rate is not None and not 0 <= self.dart_noise_rate <= 1:
            raise UserError(f"--dart-noise-rate must lie in [0, 1], got {self.dart_noise_rate}")
