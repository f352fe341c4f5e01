"""How training episodes may differ from their tasks' own: what is refused, and what a run says of it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from embodied_rl.errors import UserError


def check_perturb(kinds: Sequence[str], level: float, share: float) -> None:
    """UserError for kinds named twice, a negative level, or a share that is none."""
    twice = [kind for kind in dict.fromkeys(kinds) if list(kinds).count(kind) > 1]
    if twice:
        raise UserError(f"--perturb: '{twice[0]}' is named twice.")
    if not 0 <= level < math.inf:
        raise UserError(f"--perturb-level must not be negative, got {level:g}.")
    if not 0 < share <= 1:
        raise UserError(
            f"--perturb-share must lie above 0 and at most at 1, got {share:g}; leave --perturb out for none."
        )


def refuse_changes(kinds: Sequence[str], bank: str | None, what: str) -> None:
    """UserError if training episodes of `what` are to be perturbed or to begin in a start bank, which they can't."""
    if kinds:
        raise UserError(f"--perturb {' '.join(kinds)} does not go with {what}: leave it out.")
    if bank is not None:
        raise UserError(f"--rollout.start-bank does not go with {what}: leave it out.")


def check_changes(kinds: Sequence[str], bank: str | None, simulator: str, renderer: str, state_policy: bool) -> None:
    """UserError where the simulator, the renderer or a policy of states can't do what is asked for."""
    if state_policy:
        refuse_changes(kinds, bank, "a state policy (mlp)")
    if "warp" in (simulator, renderer):
        refuse_changes(
            kinds, None, "MuJoCo Warp, whose own are --env.randomize-color, -light, -camera, -friction and -mass"
        )
    if simulator == "warp":
        refuse_changes((), bank, "the simulator warp")


def describe_perturb(kinds: Sequence[str], level: float, share: float) -> dict[str, str]:
    """What a run stamps about it; nothing where episodes are as their tasks say."""
    if not kinds:
        return {}
    return {"perturbed": f"{', '.join(kinds)} at level {level:g}, in {share:.0%} of the training episodes"}
