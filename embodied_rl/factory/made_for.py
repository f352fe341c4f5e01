"""What a checkpoint says that it was made for; commands ask before they know what runs."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embodied_rl.config.env import (
    AUTO,
    AlohaConfig,
    CustomEnvConfig,
    EnvConfig,
    GymnasiumConfig,
    ManiSkillConfig,
    SceneConfig,
)
from embodied_rl.config.suites import suite_named
from embodied_rl.config.train import kind_of, read_env
from embodied_rl.errors import UserError
from embodied_rl.policies.checkpoints.hub import is_repository, resolve
from embodied_rl.policies.checkpoints.shipped import SHIPPED, is_shipped
from embodied_rl.utils.plugins import import_modules
from embodied_rl.utils.words import same_rate

if TYPE_CHECKING:
    from embodied_rl.vec_env import EnvInfo

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

    return family_of(policy_folder(checkpoint, weights=False)).name


def import_modules_of(checkpoint: str | None) -> None:
    """Import the modules that a checkpoint on this disk was trained with (--import); UserError where one fails.

    What a repository of the hub names is left to the user's own --import.
    """
    provenance = {} if checkpoint is None or is_repository(checkpoint) else _provenance(checkpoint)
    imports = learned_in(provenance, provenance.get("suite", "")).get("imports", [])
    import_modules(imports, f"{checkpoint} was trained with --import")


def trained_env(checkpoint: str | None, suite: str, key: str | None = None) -> EnvConfig | None:
    """The options of the envs that a checkpoint was trained in, or its demonstrations were recorded in.

    Of gymnasium's envs with the cameras that it looks at. key: as of `learned_cameras`. None where that was another
    suite, or is not said.
    """
    provenance = _provenance(checkpoint)
    said = learned_in(provenance, suite).get("env")
    env = None if said is None else read_env(said, suite, f"{checkpoint}")
    cameras = learned_cameras(provenance, key)
    return dataclasses.replace(env, cameras=cameras) if cameras and isinstance(env, GymnasiumConfig) else env


def learned_cameras(provenance: Mapping[str, Any], key: str | None = None) -> tuple[str, ...]:
    """The cameras that a checkpoint's policy looks at, in its order; () where that is not said.

    key: of the data set for whose robot it acts, where it learned from several.
    """
    return tuple(_robot(provenance, key).get("cameras") or ())


def _robot(provenance: Mapping[str, Any], key: str | None) -> Mapping[str, Any]:
    return provenance.get("robots", {}).get(key, provenance)


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


def as_learned(
    env: EnvConfig, tasks: Sequence[str], checkpoint: str | None, suite: str, key: str | None = None
) -> EnvConfig:
    """`env`, where it leaves open what an action is or what is shown, as a checkpoint learned it.

    What gymnasium's envs show is taken over for the same tasks only, but for the cameras and their order. key: as of
    `learned_cameras`.

    Raises:
        UserError: `env` names another controller.
    """
    trained = trained_env(checkpoint, suite, key) if isinstance(env, ManiSkillConfig | GymnasiumConfig) else None
    if isinstance(env, ManiSkillConfig) and isinstance(trained, ManiSkillConfig):
        if AUTO not in (trained.control_mode, env.control_mode) and env.control_mode != trained.control_mode:
            raise UserError(
                f"{checkpoint} learned actions of the controller {trained.control_mode}, and --env.control-mode is "
                f"{env.control_mode}: leave the option out."
            )
        return env if env.control_mode != AUTO else dataclasses.replace(env, control_mode=trained.control_mode)
    if isinstance(env, AlohaConfig):
        return dataclasses.replace(env, cameras=env.cameras or learned_cameras(_provenance(checkpoint), key))
    if not isinstance(env, GymnasiumConfig):
        return env
    provenance = _provenance(checkpoint)
    same_tasks = set(tasks) == set(learned_in(provenance, suite).get("tasks", ()))
    if same_tasks and isinstance(trained, GymnasiumConfig):
        return dataclasses.replace(env, **{name: getattr(env, name) or getattr(trained, name) for name in _SHOWN})
    return dataclasses.replace(env, cameras=env.cameras or learned_cameras(provenance, key))


def simulator_for(checkpoint: str | None, suite: str) -> str:
    """In which of a suite's simulators a checkpoint acts: that of its training, or the one that shows what it reads."""
    table = suite_named(suite)
    if not table.drawn_by or not checkpoint or not _is_there(checkpoint):
        return table.simulators[0]
    trained = trained_env(checkpoint, suite)
    if trained is not None:
        return kind_of("env", trained)
    from embodied_rl.factory.policies import family_of, policy_folder  # imports torch

    return table.simulator(family_of(policy_folder(checkpoint, weights=False)).config.observes)


def _is_there(checkpoint: str) -> bool:
    """Whether it is a folder, or a repository of the hub: not a shipped one, which needs no question."""
    return not is_shipped(checkpoint) and (is_repository(checkpoint) or Path(checkpoint).is_dir())


def _provenance(checkpoint: str | None) -> dict[str, Any]:
    """What a checkpoint says of its training; {} of shipped ones, and where there is none."""
    if not checkpoint or not _is_there(checkpoint):
        return {}
    from embodied_rl.factory.policies import policy_folder  # imports torch
    from embodied_rl.policies.checkpoints.folder import read_provenance

    return dict(read_provenance(policy_folder(checkpoint, weights=False)))


def need_control_rate(
    provenance: Mapping[str, Any], control_hz: float, checkpoint: str, key: str | None = None
) -> None:
    """UserError where a checkpoint's provenance says that it learned to act at another rate than `control_hz`.

    key: of the data set for whose robot it acts, where it learned from several.
    """
    learned = _robot(provenance, key).get("control_hz")
    if isinstance(learned, int | float) and not same_rate(learned, control_hz):
        advice = f"Imitate data of {control_hz:g} Hz (sft --fps says what a data set's is)"
        if "dataset" not in provenance:
            advice = f"Train a policy at {control_hz:g} Hz, or take a simulator of {learned:g} Hz"
        raise UserError(
            f"{checkpoint} learned from {learned:g} actions a second, the simulator takes {control_hz:g}: its motions "
            f"would be wrong by that factor. {advice}"
        )


def need_as_learned(
    provenance: Mapping[str, Any], env: EnvConfig, info: EnvInfo, checkpoint: str, key: str | None = None
) -> None:
    """UserError where a simulator takes actions at another rate, or shows other cameras, than a checkpoint learned.

    Scenes and the simulators that draw as they are told have cameras of their own names. Those of gymnasium that
    --env.cameras names may have other names, but no name another place.

    Args:
        provenance: what the checkpoint says of its training; what it does not say is not checked.
        env: the options that the simulator was opened with.
        info: the simulator, open.
        checkpoint: where the policy comes from, for the message.
        key: as of `learned_cameras`.
    """
    need_control_rate(provenance, info.control_hz, checkpoint, key)
    learned, shown = learned_cameras(provenance, key), info.cameras
    if not learned or learned == shown or isinstance(env, SceneConfig):
        return
    moved = any(name in shown and shown.index(name) != place for place, name in enumerate(learned))
    if isinstance(env, GymnasiumConfig):
        wrong, advice = moved or not env.cameras, "say by --env.cameras which they are, in this order"
    else:
        wrong = moved or (isinstance(env, CustomEnvConfig) and info.backend != "live")  # an arm's file says the order
        advice = "a simulator must show them by these names, in this order"
    if wrong:
        raise UserError(
            f"{checkpoint} learned from the cameras {', '.join(learned)}, and suite '{info.suite}' shows "
            f"{', '.join(shown) or 'none'}: {advice}."
        )


def is_published_format(checkpoint: str) -> bool:
    """Whether `checkpoint` is in the format that policies are published in: a folder, or a repository of the hub."""
    path = resolve(checkpoint, weights=False) / "config.json"
    if is_shipped(checkpoint) or not path.is_file():
        return False
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # whoever loads it says what is wrong
        return False
    return isinstance(config, dict) and "architecture" not in config
