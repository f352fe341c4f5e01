"""Run by test_plugin.py beside LeRobot, in an empty folder with the plugin installed: `lerobot_side.py ACTIONS ENV_PY`.

ACTIONS: an .npy file, float32 [T, 2, 7], for the two first held-out states of the stove. Writes found.json, and what
lerobot-eval itself writes of a policy with random weights.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lerobot.envs import EnvConfig, close_envs, env_to_policy_features, make_env, make_env_config  # type: ignore[import-not-found]
from lerobot.envs.utils import _call_make_env, _load_module_from_path, _normalize_hub_result  # type: ignore[import-not-found]
from lerobot.scripts import lerobot_eval  # type: ignore[import-not-found]
from lerobot.utils.import_utils import register_third_party_plugins  # type: ignore[import-not-found]

import embodied_rl as erl
from embodied_rl.errors import UserError
from embodied_rl.types import EpisodeSpec

STOVE: dict[str, Any] = {"task": "tabletop_goal", "image_size": 32, "options": {"num_threads": 1}}
LIBERO = {"physics_version": "current", "render_quality": "fast", "num_threads": 1}
ACT = ["dim_model=32", "n_heads=2", "dim_feedforward=32", "use_vae=false", "pretrained_backbone_weights=null"]


class Replay(torch.nn.Module):
    """Gives recorded actions, whatever it sees."""

    def __init__(self, actions: np.ndarray) -> None:
        super().__init__()
        self.actions, self.step, self.words = torch.from_numpy(actions), 0, set[str]()

    def reset(self) -> None:
        self.step = 0

    def select_action(self, observation: dict[str, Any]) -> torch.Tensor:
        self.words.update(observation["task"])
        self.step += 1
        return self.actions[min(self.step, len(self.actions)) - 1]


def numbered(envs: Any) -> dict[str, Any]:
    """[task, horizon] by suite and number."""
    found = {
        suite: {n: [env.call("task")[0], env.call("_max_episode_steps")[0]] for n, env in group.items()}
        for suite, group in envs.items()
    }
    close_envs(envs)
    return found


def refused(**options: Any) -> str:
    """What the plugin says of options that do not fit."""
    try:
        close_envs(make_env(make_env_config("embodied_rl", **{**STOVE, **options}), 1))
    except UserError as error:
        return str(error)
    return ""


def direct(actions: np.ndarray, stove: int) -> tuple[list[int], list[bool], list[np.ndarray]]:
    """Lengths and successes of the two episodes without LeRobot, and their last pictures."""
    opened = partial(erl.make_vec_env, STOVE["task"], 1, image_size=STOVE["image_size"], num_threads=1)
    lengths, successes, pictures = [], [], []
    with opened() as env:
        task, states = list(env.heldout_states.items())[stove]
        for row in range(2):
            env.reset([0], [EpisodeSpec(row, task, states[row], row)])
            for step in range(env.info.max_episode_steps):
                action = torch.from_numpy(actions[min(step, len(actions) - 1), row])
                result = env.step([0], action[None, None])
                if result.terminated[0] or result.truncated[0]:
                    break
            lengths.append(step + 1)
            successes.append(bool(result.success[0]))
            out = env.new_observation(1)
            env.observe([0], out)
            pictures.append(out.images[0].numpy())
    return lengths, successes, pictures


def rolled_out(env: Any, actions: np.ndarray) -> tuple[dict[str, Any], Replay]:
    """What LeRobot's own rollout returns, with observations."""
    policy, same = Replay(actions), lambda value: value
    out = lerobot_eval.rollout(env, policy, same, same, same, same, seeds=[0, 1], return_observations=True)  # type: ignore[arg-type]
    return out, policy


def compared(actions: np.ndarray, stove: int) -> dict[str, Any]:
    """LeRobot's rollout of recorded actions beside the same without LeRobot."""
    lengths, successes, pictures = direct(actions, stove)
    envs = make_env(make_env_config("embodied_rl", **STOVE, task_ids=[stove]), 2, use_async_envs=True)
    out, policy = rolled_out(envs["tabletop_goal"][stove], actions)
    close_envs(envs)
    first = out["done"].int().argmax(1)
    seen = out["observation"]
    names = ("observation.images.image", "observation.images.image2")
    return {
        "words": sorted(policy.words),
        "lengths": [lengths, (first + 1).tolist()],
        "successes": [successes, [bool(out["success"][row, : first[row] + 1].any()) for row in range(2)]],
        "rewards": out["reward"].sum(1).tolist(),
        "same_pictures": all(
            torch.equal(seen[name][row, lengths[row]], torch.from_numpy(picture[view]).permute(2, 0, 1).float() / 255)
            for row, picture in enumerate(pictures)
            for view, name in enumerate(names)
        ),
        "shapes": {name: list(values.shape[2:]) for name, values in seen.items()},
    }


def hub(path: str) -> dict[str, Any]:
    """examples/envhub/env.py as LeRobot opens such a file of the hub."""
    module = _load_module_from_path(path)
    envs = _normalize_hub_result(_call_make_env(module, n_envs=1, use_async_envs=False, cfg=None))
    observation, _ = envs["tabletop_goal"][0].reset(seed=[0])
    shape = observation["pixels"]["image"].shape
    return {"numbered": numbered(envs), "shape": list(shape)}


def main() -> None:
    """See above."""
    actions, envhub = sys.argv[1:]
    register_third_party_plugins()
    assert "embodied_rl" in EnvConfig.get_known_choices()
    suites = make_env_config("embodied_rl", **{**STOVE, "task": "tabletop_long, tabletop_goal"})
    found: dict[str, Any] = {"tabletop": numbered(make_env(suites, 1))}
    alone = make_env_config("embodied_rl", **{**STOVE, "task": "tabletop_goal/turn_on_the_stove"})
    found["alone"] = numbered(make_env(alone, 1))
    libero = make_env_config("embodied_rl", task="libero_goal", image_size=16, options=LIBERO)
    found["libero"] = numbered(make_env(libero, 1))
    stove = next(n for n, (task, _) in found["tabletop"]["tabletop_goal"].items() if task == "turn_on_the_stove")
    found["features"] = {key: list(feature.shape) for key, feature in env_to_policy_features(libero).items()}
    found["rollout"] = compared(np.load(actions), stove)
    found["hub"] = hub(envhub)
    found["refused"] = [
        refused(task_ids=[99]),
        refused(fps=30),
        refused(options={"tasks": "turn_on_the_stove"}),
        refused(options={"no_such": 8}),
        refused(task="tabletop_gaol"),
        refused(options={"cameras": 1}),
    ]
    Path("found.json").write_text(json.dumps(found))
    sys.argv[1:] = [
        *("--env.type=embodied_rl", "--env.task=tabletop_goal", f"--env.task_ids=[{stove}]", "--env.image_size=32"),
        *("--env.options={num_threads: 1}", "--policy.type=act", *(f"--policy.{option}" for option in ACT)),
        *("--policy.device=cpu", "--policy.push_to_hub=false", "--eval.n_episodes=3", "--eval.batch_size=2"),
        "--output_dir=eval",
    ]
    lerobot_eval.main()


if __name__ == "__main__":
    main()
