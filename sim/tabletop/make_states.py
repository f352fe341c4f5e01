"""Draw the initial states of every tabletop suite again and rewrite the stored files.

python -m embodied_rl.sim.tabletop.make_states
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from embodied_rl.sim.tabletop import problems, suites
from embodied_rl.sim.tabletop.initial_states import draw_states


def write_all(folder: Path) -> None:
    """Write `<folder>/<suite>.npz`, one float64 array [100, 1 + nq + nv] a task."""
    for suite in suites():
        states = {name: draw_states(f"{suite}/{name}", problem) for name, problem in problems(suite).items()}
        np.savez_compressed(folder / f"{suite}.npz", allow_pickle=False, **states)
        print(f"{suite}: {len(states)} tasks")


if __name__ == "__main__":
    write_all(Path(__file__).resolve().parents[2] / "assets" / "tabletop" / "init_states")
