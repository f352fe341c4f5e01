"""`embodied-rl train BENCHMARK`: improve a policy with reinforcement learning; everything lands in one folder."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from embodied_rl.cli.outputs import try_file, try_folder
from embodied_rl.cli.select import select
from embodied_rl.config.policies import MLPConfig
from embodied_rl.config.train import AUTO, OwnPolicyConfig, TrainConfig, kind_of
from embodied_rl.errors import UserError
from embodied_rl.jobs.run_folder import existing_run, new_run
from embodied_rl.policies.checkpoints.hub import is_repository
from embodied_rl.policies.checkpoints.shipped import is_shipped
from embodied_rl.telemetry.metrics import need_tracker


def main(argv: list[str]) -> int:
    """Run the command: 0 when training is done, 1 when it broke down, 130 when Ctrl-C stopped it."""
    chosen = select(argv)
    if chosen.resume:
        claimed = existing_run(chosen.resume, chosen.iterations)
    else:
        assert chosen.config is not None
        _check(chosen.config)
        claimed = new_run(chosen.config)
    command = shlex.join(["embodied-rl", "train", *argv])
    with claimed as config:
        # Only now torch and the simulator: a typing error should not wait for them.
        from embodied_rl.jobs.train import run
        from embodied_rl.learner.distributed.collectives import RankError
        from embodied_rl.learner.types import NonFiniteError, RatioError

        try:
            run(config, command, benchmark=chosen.benchmark, resume=chosen.resume is not None, start=chosen.start)
        except (NonFiniteError, RatioError, RankError) as error:
            print(f"embodied-rl: error: {error}", file=sys.stderr)
            return 1
    return 0


def _check(config: TrainConfig) -> None:
    """Raise UserError for what can be refused without torch."""
    from embodied_rl.sim.libero.protocol import protocol

    protocol(config.protocol)  # raises for an unknown one
    if config.trace:
        try_file("--trace", Path(config.trace))
    if config.output != AUTO:
        try_folder("--output", Path(config.output))
    if config.track != "none":
        need_tracker(config.track)
    begins_new = isinstance(config.policy, MLPConfig) and not config.policy.checkpoint
    if not isinstance(config.policy, OwnPolicyConfig) and not begins_new:
        _check_checkpoint(kind_of("policy", config.policy), config.policy.checkpoint)


def _check_checkpoint(policy: str, checkpoint: str) -> None:
    if not checkpoint:
        raise UserError(
            f"no {policy} ships with the package: make one with embodied-rl sft --policy {policy}, or name "
            "a published one, with --policy.checkpoint."
        )
    if not is_shipped(checkpoint) and not Path(checkpoint).exists() and not is_repository(checkpoint):
        raise UserError(
            f"no checkpoint at {checkpoint}: name the folder that sft or train wrote, or OWNER/NAME on the "
            "Hugging Face hub."
        )
