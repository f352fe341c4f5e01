"""What `doctor` asks and what it answers with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from embodied_rl.config.train import SUITE
from embodied_rl.factory.policies import PublishedOptions
from embodied_rl.sim.eras import EraChoice

State = Literal["ok", "note", "problem"]


@dataclass(frozen=True, kw_only=True)
class DoctorConfig(PublishedOptions):
    """Say what this machine can run, or whether a policy is read as it was trained.

    `embodied-rl doctor libero` says whether what LIBERO's tasks say holds in their initial states.
    """

    json: bool = False
    """Print the checks as JSON instead of a table."""
    policy: str | None = None
    """Check this policy and not the machine: folder of a run or checkpoint, OWNER/NAME[@REVISION] of a published one on
    the Hugging Face hub, or 'shipped'. The options that follow describe it."""
    kind: str | None = None
    """Kind of a published checkpoint: openvla or openvla_oft (None: as the checkpoint says)."""
    suite: str = SUITE
    """Suite that it is for; its training states are looked at."""
    protocol: str = "native"
    """Whose images it gets: native (this project's), openvla, openvla_oft, openpi, rlinf, rlinf_pi, simplevla or
    lerobot."""
    dataset: str | None = None
    """Demonstrations of these tasks in the LeRobot v3 layout, to compare statistics and actions with: a folder, or
    OWNER/NAME[@REVISION] on the Hugging Face hub."""


@dataclass(frozen=True, kw_only=True)
class LiberoDoctorConfig:
    """Say whether what LIBERO's tasks say holds in their initial states."""

    suite: str | None = None
    """Suite: spatial, object, goal, long (also called 10), 90, or one of LIBERO-PRO's, such as spatial_swap (None: all
    that are installed)."""
    tasks: tuple[str, ...] = ()
    """Short names of the tasks (none given: all of the suite); --task NAME names one, in every suite that has it."""
    physics_version: EraChoice = "auto"
    """Whose contacts the scenes have: published (mujoco-3.3, which auto takes as well), mujoco-2.3.7 (LIBERO's own), or
    current (this MuJoCo as it is)."""
    states: Literal["heldout", "train"] = "heldout"
    """heldout: the official evaluation states; train: the others, also those that training leaves out."""
    json: bool = False
    """Print the checks as JSON instead of a table."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One row of a report: what was checked, its state, what was found, and what to do (empty when nothing).

    note: training runs without it. problem: training cannot run.
    """

    name: str
    state: State
    found: str
    advice: str = ""


def judged(name: str, good: bool, found: str, advice: str) -> CheckResult:
    """'ok', or a problem with advice."""
    return CheckResult(name, "ok", found) if good else CheckResult(name, "problem", found, advice)
