"""Deciding with fewer layers, fewer visual tokens and reused denoising features, against the whole network.

Tiny networks with random weights, two cameras of 256 patches: a quarter of the layers is left out, a quarter of the
visual tokens is kept, and pi0's action expert runs in every second of 10 denoising steps. Unlike in the other policy
benches the contenders decide differently; what that costs in success is measured by `eval`. Times are CPU times of one
thread, so that other work on the machine disturbs them little; contenders are interleaved and medians shown.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from embodied_rl.benchmarks.policy_flow import INSTRUCTION, Figures, Row, make_rows
from embodied_rl.benchmarks.timing import interleaved
from embodied_rl.policies.efficient import VisualPruner, drop_layers
from embodied_rl.policies.flow import FlowSettings
from embodied_rl.policies.nn.decoder import Decoder
from embodied_rl.policies.openvla import config as openvla
from embodied_rl.policies.openvla_oft.config import oft
from embodied_rl.policies.openvla_oft.policy import OpenVLAOFTPolicy
from embodied_rl.policies.pi0 import config as pi0
from embodied_rl.policies.pi0.policy import Pi0Policy
from embodied_rl.rng import DecisionRng
from embodied_rl.types import ActOutput, Observation

WHOLE = "whole"
STEPS, EVERY = 10, 2
ROWS, REPEATS = 4, 5

_Policy = OpenVLAOFTPolicy | Pi0Policy


def speed_figures(quick: bool) -> Figures:
    """Measure on one thread; quick: smaller networks, once. ratios: time of the whole network / time with the option,
    pi0's by the option's name, OpenVLA-OFT's with `_oft` at the end.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _measure(quick)
    finally:
        torch.set_num_threads(threads)


def _measure(quick: bool) -> Figures:
    repeats = 1 if quick else REPEATS
    config = pi0.nano(horizon=50, layers=4) if quick else pi0.tiny(image_size=224, horizon=50)
    flow = Pi0Policy.fresh(config, [INSTRUCTION], flow=FlowSettings(num_inference_steps=STEPS))
    token_config = openvla.nano(layers=4) if quick else openvla.tiny(image_size=224)
    token = OpenVLAOFTPolicy.fresh(oft(token_config), [INSTRUCTION])
    both = {"drop_layers": _drop_a_layer, "visual_tokens": _keep_a_quarter}
    rows: list[Row] = []
    ratios: dict[str, float] = {}
    cases = [(flow, both | {"denoise_reuse": _reuse, "all_three": _all}, ""), (token, both, "_oft")]
    for policy, options, ending in cases:
        found = _compare(policy, options, repeats)
        rows += found
        ratios |= {f"{row.contender}{ending}": found[0].cpu_ms / row.cpu_ms for row in found[1:]}
    setup = {
        "batch": ROWS,
        "layers": config.decoder.layers,
        "dropped_layers": 1,
        "visual_tokens": _visual(flow),
        "kept_visual_tokens": _visual(flow) // 4,
        "num_inference_steps": STEPS,
        "computed_steps": STEPS // EVERY,
        "num_threads": 1,
        "repeats": repeats,
    }
    return Figures(rows, ratios, setup)


def _compare(whole: _Policy, options: dict[str, Callable[[_Policy], None]], repeats: int) -> list[Row]:
    """The whole policy, then one row an option."""
    policies = {WHOLE: whole} | {name: copy.deepcopy(whole) for name in options}
    for name, change in options.items():
        change(policies[name])
    config, draw = whole.config, np.random.default_rng(0)
    shape = (ROWS, config.num_cameras, config.image_size, config.image_size, 3)
    obs = Observation.from_numpy(
        draw.integers(0, 256, shape, dtype=np.uint8),
        draw.normal(size=(ROWS, 8)).astype(np.float32),
        [INSTRUCTION] * ROWS,
    )
    times, _ = interleaved({name: partial(_decide, policy, obs) for name, policy in policies.items()}, repeats, ROWS)
    return make_rows(f"{whole.architecture}, act", times)


def _decide(policy: _Policy, obs: Observation) -> ActOutput:
    rows = np.arange(ROWS)
    return policy.act(obs, DecisionRng(rows, rows), "greedy")


def _decoders(policy: _Policy) -> list[Decoder]:
    if isinstance(policy, Pi0Policy):
        return [policy.model.language, policy.model.expert]
    return [policy.model.language_model.model]


def _visual(policy: _Policy) -> int:
    tower = policy.config.vision if isinstance(policy, Pi0Policy) else policy.config.featurizer
    return tower.num_patches * policy.config.num_cameras


def _drop_a_layer(policy: _Policy) -> None:
    drop_layers(_decoders(policy), [1])


def _keep_a_quarter(policy: _Policy) -> None:
    start, visual = int(not isinstance(policy, Pi0Policy)), _visual(policy)
    policy.model.pruner = VisualPruner(_decoders(policy)[0], start, visual, visual // 4)


def _reuse(policy: _Policy) -> None:
    assert isinstance(policy, Pi0Policy)
    policy.denoise_reuse = EVERY


def _all(policy: _Policy) -> None:
    for change in (_drop_a_layer, _keep_a_quarter, _reuse):
        change(policy)
