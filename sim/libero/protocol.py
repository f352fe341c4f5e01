"""How each published project runs LIBERO: frames, settle steps, horizons, and what its policies see and answer.

A score is comparable only under one protocol: they differ in horizon by more than a factor of two, and one feeds JPEG
artefacts that another does not. The facts were read from the public repositories, at the commits in `source`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np

from embodied_rl.errors import UserError, suggest
from embodied_rl.sim.task import TaskSpec
from embodied_rl.types import Array
from embodied_rl.utils.suites import base_suite

Gripper = Literal["any", "zero_one", "direct"]
OPEN, HOLD = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -1.0), (0.0,) * 7
"""Settle actions: the arm holds still; the gripper opens, or keeps what it integrated so far."""
AGENT, BOTH = ("agentview",), ("agentview", "robot0_eye_in_hand")


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """One project's way to run an episode.

    What the simulator and the image pipeline need is always applied. From `policy_size` on the fields describe the
    project's own policies: a policy brings its own codec, and `deviations` says where it is another.
    """

    name: str
    source: str
    """Repository, commit and files that say so."""
    render_size: int | None
    """Side of the rendered frames in pixels; None renders at the policy's own size."""
    images: str
    """Image pipeline from frame to policy, by its name in embodied_rl.policies.preprocessing.images."""
    settle_steps: int
    """Control steps before the policy's first decision, not counted in the horizon; success in them counts nothing."""
    settle_action: tuple[float, ...] = OPEN
    """[7], repeated in every settle step."""
    horizons: Mapping[str, int] = field(default_factory=dict)
    """Control steps by suite, without the settle steps; a suite that is not named keeps its task's own horizon."""
    policy_size: int | None = None
    """Side of the picture that the project's policies take; None: any."""
    cameras: tuple[str, ...] | None = None
    """Cameras that the project's policies look at, in order; None: any."""
    proprio: bool | None = None
    """Whether they read the eef position (m, 3), axis-angle (rad, 3) and finger positions (m, 2); None: either."""
    steps_per_decision: int | None = None
    """Control steps that are run before the policy decides again; None: any."""
    gripper: Gripper = "any"
    """The policy's gripper value g becomes the action -sign(2 g - 1) ('zero_one': 1 opens, 0 closes), or g (direct)."""
    unnormalise: str = "any"
    """From the policy's normalised action a to the simulator's six arm dimensions; the gripper is not normalised."""

    def horizon(self, task: TaskSpec) -> int:
        """Control steps that the policy has in `task`."""
        return self.horizons.get(_family(task.suite), task.max_episode_steps)

    def settle_actions(self) -> Array:
        """float32 [settle_steps, 7]."""
        return np.tile(np.asarray(self.settle_action, np.float32), (self.settle_steps, 1))

    def describe(self) -> dict[str, Any]:
        """Every field, as plain values."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}


_Q99 = "0.5 (a + 1) (q99 - q01) + q01"
_Q99_EPSILON = "0.5 (a + 1) (q99 - q01 + 1e-8) + q01"
_OPENVLA_HORIZONS = {"spatial": 220, "object": 280, "goal": 300, "10": 520, "90": 400}
_512_STEPS = dict.fromkeys(_OPENVLA_HORIZONS, 512)

NATIVE = Protocol(
    name="native",
    source="this project: frames as rendered, no settling, each task's own horizon",
    render_size=None,
    images="as_rendered",
    settle_steps=0,
)

LIBERO = Protocol(
    name="libero",
    source="this project, for LIBERO's suites: frames as rendered, OpenVLA's settle steps and horizons",
    render_size=None,
    images="as_rendered",
    settle_steps=10,
    horizons=_OPENVLA_HORIZONS,
)

OPENVLA = Protocol(
    name="openvla",
    source="openvla/openvla c8f03f4: experiments/robot/libero/run_libero_eval.py, libero_utils.py; "
    "experiments/robot/openvla_utils.py, robot_utils.py",
    render_size=256,
    images="openvla",
    settle_steps=10,
    horizons=_OPENVLA_HORIZONS,
    policy_size=224,
    cameras=AGENT,
    proprio=False,
    steps_per_decision=1,
    gripper="zero_one",
    unnormalise=_Q99,
)

OPENVLA_OFT = Protocol(
    name="openvla_oft",
    source="moojink/openvla-oft 213c5ff: experiments/robot/libero/run_libero_eval.py, libero_utils.py; "
    "experiments/robot/openvla_utils.py, robot_utils.py; prismatic/vla/constants.py",
    render_size=256,
    images="openvla",
    settle_steps=10,
    horizons=_OPENVLA_HORIZONS,
    policy_size=224,
    cameras=BOTH,
    proprio=True,
    steps_per_decision=8,
    gripper="zero_one",
    unnormalise=_Q99_EPSILON,
)

OPENPI = Protocol(
    name="openpi",
    source="Physical-Intelligence/openpi 15a9616: examples/libero/main.py; packages/openpi-client/src/openpi_client/"
    "image_tools.py; src/openpi/policies/libero_policy.py, transforms.py, training/config.py",
    render_size=256,
    images="openpi",
    settle_steps=10,
    horizons=_OPENVLA_HORIZONS,
    policy_size=224,
    cameras=BOTH,
    proprio=True,
    steps_per_decision=5,
    gripper="direct",
    unnormalise="pi0: a (std + 1e-6) + mean; pi0-FAST and pi0.5: 0.5 (a + 1) (q99 - q01 + 1e-6) + q01",
)

# RLinf runs two families of policies under different settings; `rlinf` is its OpenVLA-OFT.
RLINF = Protocol(
    name="rlinf",
    source="RLinf/RLinf a3816b5: rlinf/envs/libero/libero_env.py, utils.py; rlinf/envs/action_utils.py; rlinf/models/"
    "embodiment/prismatic/processing_prismatic.py; examples/embodiment/config/libero_*_grpo_openvlaoft.yaml",
    render_size=256,
    images="rlinf",
    settle_steps=15,
    settle_action=HOLD,
    horizons=_512_STEPS,
    policy_size=224,
    cameras=AGENT,
    proprio=False,
    steps_per_decision=8,
    gripper="zero_one",
    unnormalise=_Q99_EPSILON,
)

RLINF_PI = Protocol(
    name="rlinf_pi",
    source="RLinf/RLinf a3816b5: rlinf/envs/libero/libero_env.py; rlinf/models/embodiment/openpi; examples/embodiment/"
    "config/env/libero_*.yaml, config/libero_*_openpi*.yaml",
    render_size=256,
    images="openpi",
    settle_steps=15,
    horizons={"spatial": 240, "object": 240, "goal": 320, "10": 480, "90": 512},
    policy_size=224,
    cameras=BOTH,
    proprio=True,
    steps_per_decision=5,
    gripper="direct",
    unnormalise=OPENPI.unnormalise,
)

SIMPLEVLA = Protocol(
    name="simplevla",
    source="PRIME-RL/SimpleVLA-RL 7c51662: verl/workers/rollout/rob_rollout.py; verl/utils/libero_utils.py; "
    "verl/utils/vla_utils/openvla_oft/constants.py",
    render_size=256,
    images="openvla",
    settle_steps=10,
    horizons=_512_STEPS,
    policy_size=224,
    cameras=AGENT,
    proprio=False,
    steps_per_decision=8,
    gripper="zero_one",
    unnormalise=_Q99_EPSILON,
)

LEROBOT = Protocol(
    name="lerobot",
    source="huggingface/lerobot 0.4.4: src/lerobot/envs/libero.py; processor/env_processor.py, normalize_processor.py; "
    "policies/smolvla/modeling_smolvla.py",
    render_size=None,
    images="lerobot",
    settle_steps=10,
    horizons={"spatial": 280, "object": 280, "goal": 300, "10": 520, "90": 400},
    policy_size=256,
    cameras=BOTH,
    proprio=True,
    gripper="direct",
    unnormalise="a std + mean",
)

LIBERO_PLUS = Protocol(
    name="libero_plus",
    source="this project, for LIBERO-plus: as libero on frames of 256 pixels, which its sensor noise needs, resized to "
    "the policy's size; sylvestf/LIBERO-plus 4976dc3: libero/libero/envs/env_wrapper.py",
    render_size=256,
    images="resized",
    settle_steps=10,
    horizons=_OPENVLA_HORIZONS,
)

PROTOCOLS = {
    p.name: p for p in (NATIVE, LIBERO, LIBERO_PLUS, OPENVLA, OPENVLA_OFT, OPENPI, RLINF, RLINF_PI, SIMPLEVLA, LEROBOT)
}


def protocol(name: str) -> Protocol:
    """The preset of that name; UserError for another."""
    if name not in PROTOCOLS:
        raise UserError(f"unknown protocol '{name}'.{suggest(name, PROTOCOLS)}")
    return PROTOCOLS[name]


def deviations(
    chosen: Protocol, *, size: int, cameras: int, proprio: bool, gripper: Gripper, steps_per_decision: int
) -> list[str]:
    """Where a policy (what it takes and answers) is not one of the protocol's own: one line each, for the report."""
    own = [
        ("picture side", chosen.policy_size, size),
        ("cameras", None if chosen.cameras is None else len(chosen.cameras), cameras),
        ("reads proprio", chosen.proprio, proprio),
        ("control steps a decision", chosen.steps_per_decision, steps_per_decision),
        ("gripper values", None if chosen.gripper == "any" else chosen.gripper, gripper),
    ]
    return [f"{what}: {have} (the protocol's policies: {want})" for what, want, have in own if want not in (None, have)]


def _family(suite: str) -> str:
    """'libero_spatial', 'libero_spatial_swap' and 'tabletop_spatial' are spatial; LIBERO calls its long suite 10."""
    name = base_suite(suite).partition("_")[2]
    return "10" if name == "long" else name
