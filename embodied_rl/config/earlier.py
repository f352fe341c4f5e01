"""Files of earlier versions: their options under today's names, or one line that says what to write."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from embodied_rl.algorithms.config import PPOConfig
from embodied_rl.config.env import AUTO, ENVS, CustomEnvConfig
from embodied_rl.config.imitation_checks import USUAL_RULE
from embodied_rl.config.policies import CUSTOM, CUSTOM_BEFORE, POLICIES, CustomPolicyConfig
from embodied_rl.config.suites import SUITE, find_suite
from embodied_rl.errors import UserError
from embodied_rl.utils.plugins import import_modules

RENAMED = {
    ("reward", "alone"): "replace_env_reward",
    ("env", "era"): "physics_version",
    ("env", "step_reward"): "reward_mode",
    ("env", "control"): "control_mode",
}
"""Today's names of options, by part and earlier name."""
_FIXED: dict[tuple[str, str], Any] = {
    ("algorithm", "advantage_eps"): 1e-6,
    ("algorithm", "normalize_advantage"): True,
    ("guard", "max_rollbacks"): 3,
    ("policy", "head"): None,
    ("policy", "keep_stop"): None,
    ("policy", "noise_range"): [0.08, 0.16],
    ("scheduler", "max_batch_delay_ms"): 0.0,
}
"""Options that are gone, with the only value that there is now."""
_UNUSED: dict[str, tuple[Any, ...]] = {
    "renderer": (AUTO,),
    "render_quality": (AUTO,),
    "physics_version": (AUTO, "current"),
    "reward": ("sparse",),
    "reward_gamma": (None,),
    "reward_mode": (AUTO,),
    "control_mode": (AUTO,),
    **{f"randomize_{what}": (0, 0.0) for what in ("color", "light", "camera", "friction", "mass")},
    "deterministic": (False,),
    "processes": (None,),
}
"""What files of before may say of options that their simulator has not."""


_LATER: dict[str, dict[str, Any]] = {
    name: {"demo_coef": 0.0, "demo_decay": PPOConfig().demo_decay} for name in ("grpo", "ppo")
}
"""Options of algorithms that came later, with the value that says what runs of before did."""

_NEW_KEYS: dict[str, Any] = {
    **{name: [] for name in ("imports", "demos", "data")},
    "people": "none",
    "people_rule": USUAL_RULE[0],
    "people_detector": "",
    "people_after": USUAL_RULE[1],
    "people_share": USUAL_RULE[2],
    "robot": "",
    "robot_speed": 1.0,
}
"""Keys of a whole config that came later, likewise."""


def with_later_options(data: Mapping[str, Any]) -> dict[str, Any]:
    """A run's whole config with the options that came after it was written."""
    found = {**_NEW_KEYS, **data}
    algorithm = data.get("algorithm")
    if isinstance(algorithm, Mapping):
        found["algorithm"] = {**_LATER.get(str(algorithm.get("name")), {}), **algorithm}
    return found


def as_written_today(data: Mapping[str, Any], suite: str = SUITE, source: str = "config") -> dict[str, Any]:
    """A run's config of an earlier version as `config.train.to_dict` writes it; suite: where it names none.

    The modules that it names are imported first: they say which options there are.

    Raises:
        UserError: an option that is gone has another value than the one that there is now.
    """
    imports = data.get("imports", ())
    if isinstance(imports, list | tuple):  # else the reader says what is wrong with it
        import_modules([str(name) for name in imports], source)
    found = dict(data)
    for part, values in data.items():
        if isinstance(values, Mapping) and not _is_custom(part, values):
            found[part] = {
                RENAMED.get((part, key), key): value
                for key, value in values.items()
                if not _is_gone(part, key, value, source)
            }
    if isinstance(found.get("env"), Mapping):
        found["env"] = current_env(found["env"], str(data.get("suite", suite)), source)
        if found["env"].get("name") == CUSTOM:
            found["env"] = {"processes": None, **found["env"]}
    policy = found.get("policy")
    if isinstance(policy, Mapping) and policy.get("name") == CUSTOM_BEFORE:
        named = str(policy.get("class_name", ""))  # a name that was registered, or the class of an object
        passed = {"name": CUSTOM, "checkpoint": "", "class_name": named}
        found["policy"] = {"name": named, "checkpoint": ""} if named and "." not in named else passed
    return found


def _is_custom(part: str, values: Mapping[str, Any]) -> bool:
    """Whether the options are of an env or a policy that a user registered, who named them."""
    tables: dict[str, Mapping[str, type]] = {"env": ENVS, "policy": POLICIES}
    kind = tables.get(part, {}).get(str(values.get("name")))
    return kind is not None and issubclass(kind, CustomEnvConfig | CustomPolicyConfig)


def _is_gone(part: str, key: str, value: Any, source: str) -> bool:
    if (part, key) not in _FIXED:
        return False
    fixed = _FIXED[part, key]
    if value != fixed:
        raise UserError(
            f"{source}: '{part}.{key}' is no option any more, and {value} is not what it always is now ({fixed}): "
            "remove it, or use the version that wrote it."
        )
    return True


def current_env(data: Mapping[str, Any], suite: str, source: str) -> dict[str, Any]:
    """The `env` of a file as it is written today: before, one class had the options of every simulator.

    Args:
        data: as the file has it.
        suite: that the file is for.
        source: the file's name, for messages.

    Raises:
        UserError: an option has a value that its simulator never had a use for.
    """
    if _is_custom("env", data):
        return dict(data)
    values = {RENAMED.get(("env", key), key): value for key, value in data.items()}
    if "simulator" not in values:
        return values
    asked, table = values.pop("simulator"), find_suite(suite)
    usual = CUSTOM if table is None else table.simulators[0]
    name = "warp" if asked == "warp" else usual
    known = {field.name for field in fields(ENVS[name])}
    for key in [key for key in values if key not in known]:
        if key == "num_threads":  # runs named the number of their machine, also where nothing used it
            del values[key]
        elif key in _UNUSED and values.pop(key) not in _UNUSED[key]:  # the reader knows other keys, or not
            raise UserError(f"{source}: 'env.{key}' does not apply to simulator {name}: remove it, write name: {name}.")
    return {"name": name, **values}
