"""Reads an export back and compares its actions with those of the policy that it was made from."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from embodied_rl.config.suites import usual_env
from embodied_rl.errors import UserError
from embodied_rl.factory.policies import PublishedOptions, load_policy
from embodied_rl.rng import DecisionRng, philox
from embodied_rl.types import Observation, concatenate

if TYPE_CHECKING:
    from embodied_rl.factory.policies import AnyPolicy

ROWS = 8
EXACT, ROUNDED, FOREIGN = 1e-6, 0.1, 1e-3
"""Largest difference of an action: weights as they are, rounded to bfloat16, and in another implementation."""


@dataclass(frozen=True, slots=True)
class Verified:
    """One reader's answer. reader: who; difference: the largest of an action; bound: what it may be."""

    reader: str
    difference: float
    bound: float

    def describe(self) -> str:
        """A line for people."""
        state = "the same actions" if self.difference <= self.bound else "OTHER ACTIONS"
        return f"{state} read back by {self.reader}: largest difference {self.difference:.2g} (at most {self.bound:g})"


def verify(policy: AnyPolicy, out: Path, layout: str | None, suite: str, dtype: torch.dtype | None) -> list[Verified]:
    """Compare greedy actions, of this program's reader of such files and where possible of transformers'.

    Args:
        policy: what was exported, on the CPU.
        out: the export.
        layout: as in `ExportRequest`.
        suite: built-in suite whose first observations are compared; '' takes drawn pictures.
        dtype: of the exported weights, None as they were.

    Raises:
        UserError: the export can't be read, or acts differently.
    """
    if policy.architecture == "mlp":
        raise UserError(f"wrote {out}; --verify compares policies of images, and this one reads a state: leave it out.")
    obs = observations(policy, suite)
    again: Any = load_policy(out, PublishedOptions().options_for(out, None))
    rng = DecisionRng(np.arange(ROWS), np.zeros(ROWS, np.int64))
    apart = (policy.act(obs, rng, "greedy").actions - again.act(obs, rng, "greedy").actions).abs().max()
    rounded = dtype is not None and any(parameter.dtype != dtype for parameter in policy.parameters())
    found = [Verified("embodied-rl, from the files alone", float(apart), ROUNDED if rounded else EXACT)]
    if policy.architecture == "pi0" and layout == "lerobot" and _has_transformers() and _is_theirs(policy):
        from embodied_rl.policies.pi0.foreign import transformers_difference

        found.append(Verified("transformers' PI0", transformers_difference(again, out, obs), FOREIGN))
    for item in found:
        if not item.difference <= item.bound:  # NaN too
            raise UserError(f"{out}: {item.describe()}: do not use this export.")
    return found


def observations(policy: AnyPolicy, suite: str) -> Observation:
    """Eight observations: the first ones of episodes of `suite`, or drawn from a fixed seed."""
    config = policy.config
    if suite:
        return _recorded(policy, suite)
    draw = philox(0, 41)
    shape = (ROWS, config.num_cameras, config.image_size, config.image_size, 3)
    images = draw.integers(0, 256, shape, dtype=np.uint8)
    proprio = draw.standard_normal((ROWS, config.proprio_dim)).astype(np.float32)
    return Observation.from_numpy(images, proprio, [f"pick up object {row}" for row in range(ROWS)])


def _recorded(policy: AnyPolicy, suite: str) -> Observation:
    from embodied_rl.factory.suites import load, open_tasks
    from embodied_rl.factory.view import view_of
    from embodied_rl.jobs.efficient_inference import first_observations
    from embodied_rl.rollout.sampler import evaluation_specs

    env = usual_env(suite, 1)
    tasks = load(suite, (), env)
    specs = evaluation_specs({name: list(rows)[:ROWS] for name, rows in tasks.heldout_states.items()}, 0)
    rows = first_observations(partial(open_tasks, tasks, env, view_of(policy)), specs)[:ROWS]
    return concatenate(rows)


def _has_transformers() -> bool:
    return importlib.util.find_spec("transformers") is not None


def _is_theirs(policy: Any) -> bool:
    """transformers has pi0, whose state is a token, and not pi0.5; nor actions relative to the state."""
    return policy.config.state_input == "token"
