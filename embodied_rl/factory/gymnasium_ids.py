"""Our suites under gymnasium's ids: `import embodied_rl` registers them as soon as gymnasium is imported too.

Imports neither torch nor a simulator, so that both imports stay as fast as they are.
"""

from __future__ import annotations

from embodied_rl.utils.suites import OFFICIAL_SUITES, PRO_SUITES, TABLETOP_SUITES

NAMESPACE = "embodied_rl"
_MODULE = "embodied_rl.factory.gymnasium_envs"


def gymnasium_ids() -> dict[str, str]:
    """The suite behind each id: {'embodied_rl/tabletop_spatial-v0': 'tabletop_spatial', ...}."""
    return {f"{NAMESPACE}/{suite}-v0": suite for suite in (*TABLETOP_SUITES, *OFFICIAL_SUITES, *PRO_SUITES)}


def register() -> None:
    """Make the ids known to gymnasium; those that it knows stay."""
    from gymnasium.envs.registration import register as add
    from gymnasium.envs.registration import registry

    for name, suite in gymnasium_ids().items():
        if name not in registry:
            add(
                name,
                entry_point=f"{_MODULE}:SuiteGymnasiumEnv",
                vector_entry_point=f"{_MODULE}:SuiteGymnasiumVectorEnv",
                kwargs={"suite": suite},
            )
