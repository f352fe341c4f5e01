"""Options of a policy that do not go with those of other parts."""

from __future__ import annotations

from embodied_rl.algorithms.config import AlgorithmConfig, PPOConfig
from embodied_rl.config.policies import FlowPolicyConfig
from embodied_rl.errors import UserError
from embodied_rl.scheduler.config import PipelinedConfig, RayConfig, SchedulerConfig


def check_flow_policy(
    policy: FlowPolicyConfig, algorithm: AlgorithmConfig, scheduler: SchedulerConfig, *, fsdp: bool
) -> None:
    """UserError if nobody could use what the prefix cache keeps, or if there is no critic to have its options."""
    if not isinstance(algorithm, PPOConfig):
        given = "critic-input" if policy.critic_input is not None else "no-detach-critic-input"
        if policy.critic_input is not None or not policy.detach_critic_input:
            raise UserError(f"--policy.{given} is for PPO's critic, which no other algorithm has: leave it out.")
    if policy.prefix_cache_gib == 0:
        return
    if isinstance(scheduler, RayConfig):
        raise UserError(
            "--policy.prefix-cache-gib keeps what this process computed, and with scheduler ray others "
            "act: leave it out, or choose --scheduler serial or pipelined."
        )
    if fsdp:
        raise UserError(
            "--policy.prefix-cache-gib keeps what the weights that act computed, and with --learner.fsdp a sharded "
            "copy learns: leave one of the two out."
        )
    if isinstance(scheduler, PipelinedConfig) and scheduler.act_device is not None:
        raise UserError(
            "--policy.prefix-cache-gib keeps what the weights that learn can read, and others act on "
            "--scheduler.act-device: leave one of the two out."
        )
