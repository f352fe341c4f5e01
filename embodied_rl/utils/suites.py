"""Names of the built-in suites and of LIBERO's, LIBERO-PRO's and LIBERO-plus'; imports nothing, so that commands can
list them at once."""

from __future__ import annotations

from collections.abc import Sequence

TABLETOP_SUITES = ("tabletop_spatial", "tabletop_object", "tabletop_goal", "tabletop_long")
"""The built-in ones."""
OFFICIAL_SUITES = ("libero_spatial", "libero_object", "libero_goal", "libero_10", "libero_90")
"""LIBERO's own."""
PLUS_SUITES = ("libero_spatial", "libero_object", "libero_goal", "libero_10")
"""Those that LIBERO-plus changes, by perturbations of each task."""
LAYOUT_SUITES = tuple(f"{suite}_layout" for suite in PLUS_SUITES)
"""Under which LIBERO-plus' layouts are exported: scenes of their own."""
LIBERO_PLUS = "libero_plus"
"""The perturbation that is LIBERO-plus, and the protocol that goes with it."""
ALOHA_SUITES = ("aloha_transfer_cube", "aloha_insertion")
"""gym-aloha's, a task each."""
PRO_VARIANTS = ("object", "swap", "lan", "task")
"""LIBERO-PRO's: other objects, positions swapped, reworded instructions, another task in the same scene."""
PRO_SUITES = tuple(
    f"{suite}_{variant}" for suite in OFFICIAL_SUITES if suite != "libero_90" for variant in PRO_VARIANTS
)
"""LIBERO-PRO's, by the names that its package registers: libero_spatial_swap, ..."""


def base_suite(suite: str) -> str:
    """The suite of LIBERO that one of LIBERO-PRO or of LIBERO-plus' layouts varies; every other name is its own."""
    return suite.rpartition("_")[0] if suite in (*PRO_SUITES, *LAYOUT_SUITES) else suite


def as_names(names: str | Sequence[str]) -> tuple[str, ...]:
    """The names; a text is one name and not a sequence of letters."""
    return (names,) if isinstance(names, str) else tuple(names)
