"""Our suites as a benchmark of vla-eval: its evaluator runs any of its model servers on them.

PYTHONPATH=examples vla-eval run --config examples/vla_eval.yaml
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from vla_eval import specs
from vla_eval.benchmarks.base import StepBenchmark, StepResult

import embodied_rl as erl
from embodied_rl.errors import UserError
from embodied_rl.rollout.sampler import evaluation_specs
from embodied_rl.types import EpisodeSpec, Observation
from embodied_rl.utils.suites import OFFICIAL_SUITES, PRO_SUITES

NAMES = {"robot0_eye_in_hand": "wrist"}
"""Of cameras, where vla-eval has another."""


class EmbodiedRLBenchmark(StepBenchmark):
    """The tasks of a suite, each from the initial states that `embodied-rl eval` evaluates, in their order.

    An action is one, [A], or a chunk, [K, A], in LIBERO's form; what is seen after it is shown.

    Args:
        suite: One of the tabletop suites or of LIBERO's.
        seed: Of an episode's draws, such as a flow policy's; initial states do not depend on it.
        image_size: Height and width in pixels.
        send_wrist_image: Show the wrist's camera too.
        send_state: Show end-effector position (m, 3), axis-angle (rad, 3) and finger positions (m, 2).
        upright: Show LIBERO's frames as our simulators draw them; else turned by 180 degrees, as vla-eval's own LIBERO
            does. Settle steps and horizons are that one's.
        options: Further ones of `make_vec_env`, such as renderer or protocol.
    """

    _ALL_RECORD_FIELDS = frozenset({"reward", "done", "success", "action"})

    def __init__(
        self,
        suite: str = "tabletop_spatial",
        *,
        seed: int = 0,
        image_size: int = 256,
        send_wrist_image: bool = False,
        send_state: bool = False,
        upright: bool = False,
        **options: Any,
    ) -> None:
        super().__init__()
        self._suite, self._send_state = suite, send_state
        of_libero = suite in (*OFFICIAL_SUITES, *PRO_SUITES)
        view = {"image_size": image_size, "cameras": 2 if send_wrist_image else 1}
        protocol = {"protocol": "libero" if upright else "openpi"} if of_libero else {}
        self._env = erl.make_vec_env(suite, 1, **{**view, **protocol, **options})
        self._cameras = [NAMES.get(name, name) for name in self._env.info.cameras]
        self._episodes: dict[str, list[EpisodeSpec]] = {}
        for spec in evaluation_specs(self._env.heldout_states, seed):
            self._episodes.setdefault(spec.task.partition("/")[2], []).append(spec)

    def get_tasks(self) -> list[dict[str, Any]]:
        """All tasks; `takes_chunks` tells a model server that a step takes several actions."""
        return [{"name": name, "suite": self._suite, "takes_chunks": True} for name in self._episodes]

    def reset(self, task: dict[str, Any]) -> Observation:
        """Begin at initial state number `episode_idx`."""
        episodes, index = self._episodes[task["name"]], task["episode_idx"]
        if index >= len(episodes):
            raise UserError(f"episodes_per_task must not exceed {len(episodes)}, the initial states of {task['name']}.")
        self._spec, self._steps = episodes[index], 0
        self._env.reset([0], [self._spec])
        return self._seen()

    def step(self, action: dict[str, Any]) -> StepResult:
        """Run the actions; where the simulator breaks, vla-eval counts an error beside the failures."""
        chunk = np.atleast_2d(np.asarray(action["actions"], np.float32))
        result = self._env.step([0], torch.from_numpy(chunk)[None])
        if result.failed[0]:
            raise self._broken()
        taken = int(result.steps_taken[0])
        self._steps += taken
        told = {"reward": float(result.reward.sum()), "done": bool(result.terminated[0] | result.truncated[0])}
        info = {"success": bool(result.success[0])}
        self._recorder.record_step(**told, **info, action=chunk[:taken])
        return StepResult(self._seen(), **told, info=info)

    def make_obs(self, raw_obs: Observation, task: dict[str, Any]) -> dict[str, Any]:
        """What a model server gets."""
        shown = {
            "images": dict(zip(self._cameras, raw_obs.images[0].numpy(), strict=True)),
            "task_description": raw_obs.instruction[0],
            "seed": self._spec.seed,
        }
        return shown | ({"states": raw_obs.proprio[0].numpy()} if self._send_state else {})

    def get_step_result(self, step_result: StepResult) -> dict[str, Any]:
        """Whether the goal was reached, and after how many control steps."""
        return {**step_result.info, "control_steps": self._steps}

    def get_metric_keys(self) -> dict[str, str]:
        """Means over episodes."""
        return {"success": "mean", "control_steps": "mean"}

    def get_metadata(self) -> dict[str, Any]:
        """Limits; an episode ends at its task's own horizon, which may come before `max_steps`."""
        states = min(len(episodes) for episodes in self._episodes.values())
        return {"max_steps": self._env.info.max_episode_steps, "max_episodes_per_task": states}

    def get_action_spec(self) -> dict[str, specs.DimSpec]:
        """LIBERO's: changes of position and axis-angle in [-1, 1]; 1 closes the gripper."""
        arm = {"position": specs.POSITION_DELTA, "rotation": specs.ROTATION_AA}
        return arm | {"gripper": specs.GRIPPER_CLOSE_POS}

    def get_observation_spec(self) -> dict[str, specs.DimSpec]:
        """LIBERO's."""
        shown = {**dict.fromkeys(self._cameras, specs.IMAGE_RGB), "language": specs.LANGUAGE}
        return shown | ({"state": specs.STATE_EEF_POS_AA_GRIP} if self._send_state else {})

    def cleanup(self) -> None:
        """Close the simulator."""
        self._env.close()

    def _seen(self) -> Observation:
        obs = self._env.new_observation(1)
        if self._env.observe([0], obs):
            raise self._broken()
        self._recorder.record_video(obs.images[0, 0].numpy())
        return obs

    def _broken(self) -> RuntimeError:
        return RuntimeError(f"the simulator broke in {self._spec.task}, initial state {self._spec.init_state}")
