"""Eras of MuJoCo's contacts and pictures by name; see docs/results/libero_fidelity.md. Imports no simulator.

LIBERO's scenes were tuned on MuJoCo 2.3.7 and most published scores were measured on 3.0 to 3.3. MuJoCo 3.4 and 3.12
changed the contacts between boxes, and 3.3.3 the colours of some textures: objects settle elsewhere, or fly.
"""

from __future__ import annotations

from typing import Literal, get_args

from embodied_rl.errors import UserError, suggest

Era = Literal["current", "mujoco-3.3", "mujoco-2.3.7"]
"""current: the running MuJoCo as it is. mujoco-3.3: MuJoCo 3.1 to 3.3.2. mujoco-2.3.7: MuJoCo 2.3.7 to 3.0."""
EraChoice = Literal["auto", "published", "current", "mujoco-3.3", "mujoco-2.3.7"]
"""auto: published for LIBERO's suites, current for others. published: mujoco-3.3."""
CURRENT: Era = "current"
PUBLISHED: Era = "mujoco-3.3"


def choose_era(wanted: str, suite: str, *, official: bool) -> Era:
    """The era that `wanted` means for `suite`.

    Args:
        wanted: an `EraChoice`.
        official: whether the suite is one of LIBERO's.

    Raises:
        UserError: There is no such era, or the suite was made for the running MuJoCo and has no other.
    """
    if wanted not in get_args(EraChoice):
        raise UserError(f"unknown era '{wanted}'.{suggest(wanted, get_args(EraChoice))}")
    if wanted == "auto":
        return PUBLISHED if official else CURRENT
    era: Era = PUBLISHED if wanted == "published" else wanted  # pyright: ignore[reportAssignmentType]
    if era != CURRENT and not official:
        raise UserError(
            f"era '{wanted}': only LIBERO's suites have published scores to agree with; {suite} was made for this "
            "MuJoCo, so give no era."
        )
    return era
