"""Does `runs compare` see that a run has learned nothing? `python -m embodied_rl.benchmarks.shuffled --runs 3`.

Trains the tabletop recipe by the real `train` command, but hands each update the outcomes of its episodes in a random
order, as a bug in the bookkeeping of rewards would. Then `runs compare` must call each run outside the band of its
recipe's card. Exits with 1 if it calls one inside. `--honest` trains without the bug: then each must be inside.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import numpy as np
import tyro

from embodied_rl.cli import main as command
from embodied_rl.rng import philox
from embodied_rl.rollout import collector
from embodied_rl.rollout.observation_pool import Trajectory, gather
from embodied_rl.types import RolloutBatch


@dataclass(frozen=True, kw_only=True)
class Shuffled:
    """Train with shuffled rewards, and see that `runs compare` notices."""

    runs: int = 3
    """Runs, of seeds from `seed` on."""
    seed: int = 0
    """Of the first run."""
    iterations: int = 10
    """Updates of a run; the card has a band after 10."""
    honest: bool = False
    """Leave the rewards as they are."""
    output: Path | None = None
    """Folder that keeps the runs (None: they are deleted)."""


def shuffle_outcomes(batch: RolloutBatch, draw: np.random.Generator) -> None:
    """Give each episode of a batch with sparse rewards another one's last reward, in place."""
    ends = [int(rows[-1]) for rows in map(np.flatnonzero, _by_episode(batch)) if len(rows)]
    outcomes = batch.reward[ends].clone()
    batch.reward[ends] = outcomes[draw.permutation(len(ends))]


def _by_episode(batch: RolloutBatch) -> list[np.ndarray]:
    return [(batch.episode == number).numpy() for number in range(len(batch.episodes))]


def train(folder: Path, given: Shuffled, seed: int) -> int:
    """One run in `folder`; the exit code of `runs compare` on it: 0 inside the band, 1 outside."""
    words = ["train", "tabletop", "--iterations", str(given.iterations), "--seed", str(seed), "--videos", "0"]

    def shuffled(trajectories: Sequence[Trajectory], version: int) -> RolloutBatch:
        batch = gather(trajectories, version)
        if not given.honest:
            shuffle_outcomes(batch, philox(seed, 33, version))
        return batch

    with mock.patch.object(collector, "gather", shuffled):
        code = command([*words, "--output", str(folder)])
    if code != 0:
        raise RuntimeError(f"train ended with exit code {code}")
    return command(["runs", "compare", str(folder)])


def main(given: Shuffled) -> int:
    """Train and compare; 1 if a run lies where it should not."""
    with tempfile.TemporaryDirectory(prefix="embodied-rl-shuffled-") as place:
        root = given.output or Path(place)
        seeds = range(given.seed, given.seed + given.runs)
        outside = [train(root / f"seed{seed}", given, seed) == 1 for seed in seeds]
    kind = "honest" if given.honest else "shuffled"
    print(f"runs with {kind} rewards outside the band: {sum(outside)} of {len(outside)}")
    return int(any(outside) if given.honest else not all(outside))


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Shuffled)))
