"""What a checkpoint says that it was made for; commands ask before they know what runs."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from embodied_rl.config.env import AUTO, EnvConfig, GymnasiumConfig, ManiSkillConfig
from embodied_rl.config.suites import suite_named
from embodied_rl.config.train import kind_of, read_env
from embodied_rl.errors import UserError
from embodied_rl.policies.checkpoints.hub import is_repository
from embodied_rl.policies.checkpoints.shipped import SHIPPED, is_shipped
from embodied_rl.utils.plugins import import_modules
from embodied_rl.utils.words import same_rate

_SHOWN = ("cameras", "proprio", "instruction", "control_hz")
"""Options of gymnasium's envs that say what is shown."""


def suite_of(checkpoint: str) -> str | None:
    """The suite that a checkpoint was trained on, by its provenance; None where it does not say.

    Args:
        checkpoint: A folder of a policy or a run, a shipped one (shipped:libero_object), or a repository of the hub.
    """
    if is_shipped(checkpoint):
        return checkpoint.removeprefix(SHIPPED).removeprefix(":") or None
    suite = _provenance(checkpoint).get("suite")
    return suite if isinstance(suite, str) else None


def family_name(checkpoint: str) -> str:
    """The kind of policy that a checkpoint holds; UserError where there is none, or it does not say."""
    from embodied_rl.factory.policies import family_of, policy_folder  # imports torch

    return family_of(policy_folder(checkpoint)).name


def import_modules_of(checkpoint: str | None) -> None:
    """Import the modules that a checkpoint on this disk was trained with (--import); UserError where one fails."""
    provenance = _provenance(checkpoint)
    imports = learned_in(provenance, provenance.get("suite", "")).get("imports", [])
    import_modules(imports, f"{checkpoint} was trained with --import")


def trained_env(checkpoint: str | None, suite: str) -> EnvConfig | None:
    """The options of the envs that a checkpoint was trained in, or its demonstrations were recorded in.

    None where that was another suite, or is not said.
    """
    env = learned_in(_provenance(checkpoint), suite).get("env")
    return None if env is None else read_env(env, suite, f"{checkpoint}")


def learned_in(provenance: Mapping[str, Any], suite: str) -> Mapping[str, Any]:
    """Env, tasks and imports of a checkpoint's run in `suite`, or of the collection that it imitates; {} elsewhere."""
    if provenance.get("suite", "") != suite:
        return {}
    sets = provenance.get("datasets") or [provenance.get("dataset", {})]
    first, *others = (each.get("collected") or {} for each in sets)
    if "env" not in first:
        return provenance.get("config", {})
    if any(other.get("env") != first["env"] for other in others):
        return {}
    env = first["env"]
    if "name" not in env:  # a stamp of before: the simulator was the one that shows images
        env = {"name": suite_named(suite).simulator("images"), **env}
    tasks = {name.partition("/")[2] or name: None for stamp in (first, *others) for name in stamp["tasks"]}
    return {"env": env, "tasks": tuple(tasks), "imports": first.get("imports", ())}


def as_learned(env: EnvConfig, tasks: Sequence[str], checkpoint: str | None, suite: str) -> EnvConfig:
    """`env`, where it leaves open what an action is or what is shown, as a checkpoint learned it.

    What gymnasium's envs show is taken over for the same tasks only.

    Raises:
        UserError: `env` names another controller.
    """
    trained = trained_env(checkpoint, suite) if isinstance(env, ManiSkillConfig | GymnasiumConfig) else None
    if isinstance(env, ManiSkillConfig) and isinstance(trained, ManiSkillConfig):
        if AUTO not in (trained.control_mode, env.control_mode) and env.control_mode != trained.control_mode:
            raise UserError(
                f"{checkpoint} learned actions of the controller {trained.control_mode}, and --env.control-mode is "
                f"{env.control_mode}: leave the option out."
            )
        return env if env.control_mode != AUTO else dataclasses.replace(env, control_mode=trained.control_mode)
    if isinstance(env, GymnasiumConfig) and isinstance(trained, GymnasiumConfig):
        if set(tasks) != set(learned_in(_provenance(checkpoint), suite).get("tasks", ())):
            return env
        return dataclasses.replace(env, **{name: getattr(env, name) or getattr(trained, name) for name in _SHOWN})
    return env


def simulator_for(checkpoint: str | None, suite: str) -> str:
    """In which of a suite's simulators a checkpoint acts: that of its training, or the one that shows what it reads."""
    table = suite_named(suite)
    if not table.drawn_by or not checkpoint or not Path(checkpoint).is_dir():
        return table.simulators[0]
    trained = trained_env(checkpoint, suite)
    if trained is not None:
        return kind_of("env", trained)
    from embodied_rl.factory.policies import family_of, policy_folder  # imports torch

    return table.simulator(family_of(policy_folder(checkpoint)).config.observes)


def _provenance(checkpoint: str | None) -> dict[str, Any]:
    """What a checkpoint on this disk says of its training; {} of others."""
    if not checkpoint or is_shipped(checkpoint) or is_repository(checkpoint) or not Path(checkpoint).is_dir():
        return {}
    from embodied_rl.factory.policies import policy_folder  # imports torch
    from embodied_rl.policies.checkpoints.folder import read_provenance

    return dict(read_provenance(policy_folder(checkpoint)))


def need_control_rate(
    provenance: Mapping[str, Any], control_hz: float, checkpoint: str, key: str | None = None
) -> None:
    """UserError where a checkpoint's provenance says that it learned to act at another rate than `control_hz`.

    key: of the data set for whose robot it acts, where it learned from several.
    """
    robot = provenance.get("robots", {}).get(key, provenance)
    learned = robot.get("control_hz")
    if isinstance(learned, int | float) and not same_rate(learned, control_hz):
        raise UserError(
            f"{checkpoint} learned from {learned:g} actions a second, the simulator takes {control_hz:g}: its motions "
            f"would be wrong by that factor. Imitate data of {control_hz:g} Hz (sft --fps says what a data set's is)"
        )


def is_published_format(checkpoint: str) -> bool:
    """Whether `checkpoint` is of the hub, or a folder in the format that policies are published in."""
    if is_repository(checkpoint):
        return True
    path = Path(checkpoint) / "config.json"
    if is_shipped(checkpoint) or not path.is_file():
        return False
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # whoever loads it says what is wrong
        return False
    return isinstance(config, dict) and "architecture" not in config
