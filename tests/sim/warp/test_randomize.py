"""Worlds that differ by episode: what is drawn, that it reaches the engine, and that it comes from the EpisodeSpec."""

from __future__ import annotations

import threading
from contextlib import closing
from types import SimpleNamespace
from typing import TYPE_CHECKING

import mujoco
import numpy as np
import pytest
import torch

from embodied_rl.errors import UserError
from embodied_rl.rollout.sampler import EpisodeSampler
from embodied_rl.sim.mujoco.robot import PANDA
from embodied_rl.sim.mujoco.vec_env import MujocoVecEnv
from embodied_rl.types import EpisodeSpec, Observation
from embodied_rl.vec_env import VecEnv
from tests.sim.contract import draw
from tests.sim.warp.worlds import DEVICE, MISSING, needs_warp, short_tasks

if TYPE_CHECKING or not MISSING:
    from embodied_rl.sim.warp.batch import Settings
    from embodied_rl.sim.warp.drawn_env import WarpDrawnEnv
    from embodied_rl.sim.warp.images import Images
    from embodied_rl.sim.warp.randomize import Randomization
    from embodied_rl.sim.warp.render import View
    from embodied_rl.sim.warp.vec_env import WarpVecEnv

pytestmark = needs_warp


def spec(seed: int) -> EpisodeSpec:
    return EpisodeSpec(0, short_tasks()[0].name, 0, seed)


def seen(env: VecEnv, env_ids: list[int]) -> Observation:
    out = env.new_observation(len(env_ids))
    env.observe(env_ids, out)
    return out


@pytest.mark.parametrize("what", ["color", "light", "camera"])
def test_looks_differ_by_seed_and_by_nothing_else(what: str) -> None:
    exact = MujocoVecEnv(short_tasks(), 3, image_size=24, threads=1, cameras=0)
    with closing(WarpDrawnEnv(exact, device=DEVICE, randomize=Randomization(**{what: 0.3}))) as env:
        assert f"randomized ({what} 0.3)" in env.info.renderer
        env.reset([0, 1, 2], [spec(1), spec(2), spec(1)])
        images = seen(env, [0, 1, 2]).images
        assert not torch.equal(images[0], images[1])
        assert torch.equal(images[0], images[2])
        assert torch.equal(seen(env, [2, 1]).images, images[[2, 1]])
        env.reset([1], [spec(1)])
        assert torch.equal(seen(env, [1]).images[0], images[0])


def test_friction_and_mass_change_motions_by_seed() -> None:
    randomize = Randomization(friction=0.5, mass=0.5)
    with closing(
        WarpVecEnv(short_tasks(), 3, device=DEVICE, cameras=0, renderer=None, randomize=randomize, deterministic=True)
    ) as env:
        env.reset([0, 1, 2], [spec(1), spec(2), spec(1)])
        rows, actions = env._held[0].rows, draw(env.info, 1).expand(3, -1, -1)
        actions = actions[:, :2].contiguous()
        assert not env.step([0, 1, 2], actions).failed.any()
        # a GPU sums in an order of its own for each world, also where it is deterministic
        rounding = 0.0 if DEVICE == "cpu" else 1e-9
        assert float((rows[0] - rows[2]).abs().max()) <= rounding
        assert float((rows[0] - rows[1]).abs().max()) > rounding
        one, other = (seen(env, [env_id]).proprio for env_id in (0, 2))
        torch.testing.assert_close(one, other, rtol=0, atol=rounding)


def test_the_members_of_a_group_have_one_world() -> None:
    """They are compared: what differs between them is what the policy did. Other groups have other worlds."""
    (task, *_), randomize = short_tasks(), Randomization(color=0.3, friction=0.5, mass=0.5)
    sampler = EpisodeSampler(0, {task.name: [0]}, group_size=2)
    specs = [*sampler.next_group(), *sampler.next_group()]
    for _ in range(2):  # the second run again has another seed
        again = sampler.requeue(specs[1])
        assert again is not None
        specs[1] = again
    assert len({each.seed for each in specs}) == 4
    with closing(WarpVecEnv([task], 4, device=DEVICE, image_size=24, cameras=1, randomize=randomize)) as env:
        env.reset(range(4), specs)
        images = seen(env, [0, 1, 2, 3]).images
        assert torch.equal(images[0], images[1])
        assert torch.equal(images[2], images[3])
        assert not torch.equal(images[0], images[2])
        fields = env._held[0]._fields
        assert fields is not None
        for name in ("geom_friction", "body_mass"):
            one, two, three, four = fields._values[name][:4]
            assert torch.equal(one, two)
            assert torch.equal(three, four)
            assert not torch.equal(one, three)


def test_a_scaled_object_is_a_heavier_model() -> None:
    """What MuJoCo derives from masses follows: compared with a model that is compiled anew."""
    model = short_tasks()[0].build_physics()
    drawn = Randomization(mass=0.4).physics(model, 5)
    scale = drawn["body_mass"] / np.maximum(model.body_mass, 1e-12)
    assert len(set(np.round(scale[model.body_mass > 0], 6))) == 3  # the arm as it is, each of two objects its own
    heavier = short_tasks()[0].build_physics()
    heavier.body_mass[:], heavier.body_inertia[:] = drawn["body_mass"], drawn["body_inertia"]
    mujoco.mj_setConst(heavier, mujoco.MjData(heavier))
    for name in ("body_subtreemass", "body_invweight0", "dof_invweight0"):
        np.testing.assert_allclose(drawn[name], getattr(heavier, name), rtol=1e-6, atol=1e-9, err_msg=name)
    np.testing.assert_array_equal(Randomization().physics(model, 5)["body_invweight0"], model.body_invweight0)


def test_what_cannot_vary_is_refused() -> None:
    with pytest.raises(UserError, match="share"):
        Randomization(color=1.5)
    with pytest.raises(UserError, match="simulator warp"):
        WarpDrawnEnv(MujocoVecEnv(short_tasks(), 1, cameras=0), randomize=Randomization(mass=0.1))
    with pytest.raises(UserError, match="renderer warp"):
        WarpVecEnv(short_tasks(), 1, cameras=0, renderer=None, randomize=Randomization(color=0.1))


def test_looks_are_drawn_by_one_thread_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Env groups of a pipelined scheduler reset while others are drawn: two that met a task for the first time would
    each make its renderer, and the looks that one of them holds would never be seen."""
    pictures = Images(2, View(PANDA.cameras, 8), Settings(DEVICE, False, False), Randomization(color=0.2))
    free: list[bool] = []

    def meets(_: object) -> SimpleNamespace:
        asking = threading.Thread(target=lambda: free.append(pictures._lock.acquire(blocking=False)))
        asking.start()
        asking.join()
        return SimpleNamespace(host=short_tasks()[0].build_visual(), randomize=lambda env_ids, drawn: None)

    monkeypatch.setattr(pictures, "renderer", meets)
    pictures.reset(1, short_tasks()[0], seed=3)
    assert free == [False]
