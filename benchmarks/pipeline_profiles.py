"""Stage costs of three published set-ups. 'Measured' is what a source says; 'derived' is ours, with the arithmetic."""

from __future__ import annotations

from embodied_rl.autotune.costs import Cost, Costs
from embodied_rl.benchmarks.pipeline_timed import Profile

OPENVLA_MANISKILL = Profile(
    name="openvla_maniskill",
    source=(
        "Measured: RL4VLA (arXiv 2505.19789, its README), OpenVLA with PPO in ManiSkill, 64 worlds: 1.5 M env-steps in "
        "about 42 h on one A100, so 101 ms an env-step, which is a decision. Derived: 4.1 TFLOP a forward pass (7.5 B "
        "parameters, 285 tokens) at half of 312 TFLOP/s are 26 ms to act, twice that to learn (one epoch, LoRA), and "
        "23 ms are left to simulate, half of it taken as fixed a call. Laid out disaggregated: simulator, policy and "
        "learner on a GPU each. A forward pass over a stale row: 26 ms, by the policy's GPU."
    ),
    worlds=64,
    costs=Costs(
        simulate=Cost("gpu0", row=0.0115, fixed=64 * 0.0115),
        act=Cost("gpu1", row=0.026),
        learn=Cost("gpu2", row=0.052),
        evaluate=Cost("gpu1", row=0.026),
    ),
)

OFT_LIBERO = Profile(
    name="oft_libero",
    source=(
        "Measured: RLinf issue 417, OpenVLA-OFT with GRPO on LIBERO-Spatial, 6 H100: a rollout takes about 27 min, 130 "
        "iterations 5 days, so 28 min for the rest. With its example configuration (64 worlds, 16 x 512 steps, chunks "
        "of 8) a rollout has 65,536 decisions: 24.7 ms of rollout and 26 ms of update a decision. Derived: 8.4 TFLOP a "
        "forward pass (7.5 B parameters, 560 tokens) at 400 TFLOP/s on 6 GPUs are 3.5 ms to act; 21.2 ms are left to "
        "simulate (339 ms on one of 16 cores). Laid out colocated: policy and learner share the GPUs, CPU cores "
        "simulate. A forward pass over a stale row: 3.5 ms, as to act, which is one forward pass."
    ),
    worlds=64,
    costs=Costs(
        simulate=Cost("cpu", row=16 * 0.0212),
        act=Cost("gpu", row=0.0035),
        learn=Cost("gpu", row=0.026),
        evaluate=Cost("gpu", row=0.0035),
        servers={"cpu": 16},
    ),
)

PI0_LIBERO = Profile(
    name="pi0_libero",
    source=(
        "Measured: 32.9 ms for pi0 with two views on an RTX 4090 (dexmal/realtime-vla); 10 s of simulation in 500 "
        "LIBERO steps (openvla issue 276), so 100 ms on one core for a chunk of 5. Derived: an update of one epoch "
        "with a frozen prefix costs about as much as acting; a forward pass over a stale row a third of that, 11 ms. "
        "Laid out colocated on one GPU with 4 CPU cores."
    ),
    worlds=32,
    costs=Costs(
        simulate=Cost("cpu", row=0.1), act=Cost("gpu", row=0.0329), learn=Cost("gpu", row=0.0329), servers={"cpu": 4}
    ),
)

PROFILES = (OPENVLA_MANISKILL, OFT_LIBERO, PI0_LIBERO)
