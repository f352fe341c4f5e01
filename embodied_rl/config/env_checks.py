"""Options of the simulated environments that do not go with those of other parts."""

from __future__ import annotations

from embodied_rl.config.train import EnvConfig
from embodied_rl.errors import UserError


def check_threads(env: EnvConfig, protocol: str, *, shared: bool = False) -> None:
    """UserError where threads are asked for that would have nothing to do.

    MuJoCo Warp steps and draws all worlds at once. Threads are left for the pictures of a protocol other than native.

    Args:
        env: with `num_threads` as the user gave it.
        protocol: its name.
        shared: whether env groups share the threads out, as under a pipelined scheduler.
    """
    if env.num_threads is not None and env.simulator == "warp" and protocol == "native" and not shared:
        raise UserError("--env.num-threads: MuJoCo Warp holds all worlds in one batch; leave the option out.")


def refuse_threads(env: EnvConfig, suite: str) -> None:
    """UserError if threads are asked for in `suite`, one whose tasks have a state: its envs are stepped in turn."""
    if env.num_threads is not None:
        raise UserError(f"--env.num-threads does not apply to {suite}: its envs share out by --env.processes.")


def check_drawn(env: EnvConfig, cameras: int) -> None:
    """UserError if what MuJoCo Warp draws is to be randomised where no camera draws."""
    if cameras == 0 and max(env.randomize_color, env.randomize_light, env.randomize_camera) > 0:
        raise UserError(
            "--env.randomize-color, -light and -camera change pictures, and without cameras there are none: leave "
            "them out, or ask for cameras."
        )
