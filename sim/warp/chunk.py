"""A chunk of control steps in some of a scene's worlds, without waiting for the device."""

from __future__ import annotations

import torch

from embodied_rl.sim.warp.batch import Batch
from embodied_rl.sim.warp.goal import Poses
from embodied_rl.sim.warp.scene import Scene
from embodied_rl.types import ChunkResult


def run_chunk(
    scene: Scene, env_ids: torch.Tensor, actions: torch.Tensor, left: torch.Tensor, *, stop: bool
) -> tuple[ChunkResult, torch.Tensor]:
    """Run up to K control steps in N envs, and keep their states in `scene.rows`.

    A world that ends takes no further step: it is put back to its last state as often as the others go on. So is one
    that breaks, to its last sound state.

    Args:
        env_ids: int64 [N].
        actions: float32 [N, K, 7] in [-1, 1].
        left: int [N], control steps until each episode's horizon, at least 1.
        stop: whether success ends an episode.

    Returns:
        The result, and bits of mujoco_warp.OverflowType of each env, int32 [N].
    """
    count, steps = actions.shape[:2]
    device = actions.device
    batch = scene.batch(count)
    # The worlds beyond `count` step too: they get the state at rest, the last row, and nobody reads them.
    rest = env_ids.new_full((batch.worlds - count,), len(scene.rows) - 1)
    scene.load(batch, torch.cat([env_ids, rest]))
    which, rows = scene.task_of[env_ids], scene.rows[env_ids]
    reward = torch.zeros((count, steps), device=device)
    taken = torch.zeros(count, dtype=torch.int32, device=device)
    over, failed = torch.zeros_like(taken), torch.zeros(count, dtype=torch.bool, device=device)
    active, won = ~failed, failed.clone()
    for k in range(steps):
        if device.type == "cpu" and not active.any():  # elsewhere the question costs more than the step
            break
        batch.action[:count] = actions[:, k]
        batch.control_step()
        broken, held = batch.broken()[:count], _judge(scene, batch, which)
        # Worlds that have ended step on: what happens there counts for nothing.
        over |= torch.where(active, batch.overflow()[:count], 0)
        failed |= active & broken
        sound = active & ~broken
        taken += active.int()
        reward[:, k] = (sound & held).float()
        rows = torch.where(sound[:, None], batch.read(count), rows)
        batch.load(rows)
        won |= sound & held
        active = sound & (taken < left)
        if stop:
            active &= ~held
    scene.rows[env_ids] = rows  # only now: a chunk that raises leaves the envs as they were
    terminated = won & ~failed if stop else torch.zeros_like(won)
    truncated = ~failed & ~terminated & (taken >= left)
    return ChunkResult(reward, terminated, truncated, won, taken, failed), over


def _judge(scene: Scene, batch: Batch, which: torch.Tensor) -> torch.Tensor:
    """Whether the goal of each world holds, bool [N]."""
    count = len(which)
    poses = Poses(
        batch.qpos[:count],
        batch.xpos[:count],
        batch.site_xpos[:count],
        batch.site_xmat[:count],
        batch.contact_geoms,
        batch.contact_world,
        batch.num_contacts,
    )
    return scene.goal.judge(poses, which).all(dim=1)
