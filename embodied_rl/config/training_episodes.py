"""How training episodes may differ from their tasks' own: what is refused."""

from __future__ import annotations

import math
from collections.abc import Sequence

from embodied_rl.config.env import EnvConfig, SceneConfig, WarpConfig
from embodied_rl.errors import UserError, refuse_twice

LEVEL = 1.0
"""What --perturb-level is unless it is given."""
SHARE = 0.75
"""What --perturb-share is unless it is given."""


def check_perturb(kinds: Sequence[str], level: float | None, share: float | None) -> None:
    """UserError for kinds named twice, a negative level, a share that is none, or one of the two without kinds."""
    for name, value in (("level", level), ("share", share)):
        if value is not None and not kinds:
            raise UserError(f"--perturb-{name} goes with --perturb.")
    refuse_twice(kinds, "perturbation")
    if level is not None and not 0 <= level < math.inf:
        raise UserError(f"--perturb-level must be a finite number and not negative, got {level:g}.")
    if share is not None and not 0 < share <= 1:
        raise UserError(
            f"--perturb-share must lie above 0 and at most at 1, got {share:g}; leave --perturb out for none."
        )


def refuse_changes(kinds: Sequence[str], what: str) -> None:
    """UserError if training episodes of `what` are to be perturbed, which they can't."""
    if kinds:
        raise UserError(f"--perturb {' '.join(kinds)} does not go with {what}: leave it out.")


def check_changes(kinds: Sequence[str], env: EnvConfig) -> None:
    """UserError where the simulator or the renderer can't do what is asked for."""
    if isinstance(env, SceneConfig) and (isinstance(env, WarpConfig) or env.drawn_by_warp):
        refuse_changes(kinds, "MuJoCo Warp, whose own are --env.randomize-color, -light, -camera, -friction and -mass")
    if not isinstance(env, SceneConfig):
        refuse_changes(kinds, "this simulator: only the built-in suites' and LIBERO's tasks can be perturbed")
