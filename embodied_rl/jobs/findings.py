"""What `doctor` asks and what it answers with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from embodied_rl.config.train import SUITE
from embodied_rl.factory.policies import PublishedOptions

State = Literal["ok", "note", "problem"]


@dataclass(frozen=True, kw_only=True)
class DoctorConfig(PublishedOptions):
    """Say what this machine can run, or whether a policy is read as it was trained.

    `embodied-rl doctor libero` says whether what LIBERO's tasks say holds in their initial states.
    """

    json: bool = False
    """Print the findings as JSON instead of a table."""
    policy: str | None = None
    """Check this policy and not the machine: folder of a run or checkpoint, OWNER/NAME[@REVISION] of a published one on
    the Hugging Face hub, or 'shipped'. The options that follow describe it."""
    kind: str | None = None
    """Kind of a published checkpoint: openvla or openvla_oft (None: as the checkpoint says)."""
    suite: str = SUITE
    """Suite that it is for; its training states are looked at."""
    protocol: str = "native"
    """Whose pictures it gets: native (this project's), openvla, openvla_oft, openpi, rlinf, rlinf_pi, simplevla or
    lerobot."""
    dataset: Path | None = None
    """Demonstrations of these tasks in the LeRobot v3 layout, to compare statistics and actions with."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One row: what was looked at, its state, what was found, and what to do (empty when nothing).

    note: training runs without it. problem: training cannot run.
    """

    name: str
    state: State
    found: str
    advice: str = ""
