"""Protocol presets against the published settings, and the environment that applies them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

import numpy as np
import pytest
import torch

from embodied_rl.errors import UserError
from embodied_rl.sim.libero.protocol import PROTOCOLS, Protocol, deviations, protocol
from embodied_rl.sim.tabletop import load_suite
from embodied_rl.sim.wrappers.protocol_env import ProtocolEnv
from embodied_rl.types import Array, ChunkResult, EpisodeSpec, Observation
from tests.env_info import env_info

TASK = load_suite("tabletop_spatial")[0]
OPEN, HOLD = [0.0] * 6 + [-1.0], [0.0] * 7


# The published values, written down a second time: horizons by suite, settle steps and their action, cameras.
@pytest.mark.parametrize(
    ("name", "horizons", "settle", "action", "cameras", "images"),
    [
        ("openvla", (220, 280, 300, 520, 400), 10, OPEN, 1, "openvla"),
        ("openvla_oft", (220, 280, 300, 520, 400), 10, OPEN, 2, "openvla"),
        ("openpi", (220, 280, 300, 520, 400), 10, OPEN, 2, "openpi"),
        ("rlinf", (512, 512, 512, 512, 512), 15, HOLD, 1, "rlinf"),
        ("rlinf_pi", (240, 240, 320, 480, 512), 15, OPEN, 2, "openpi"),
        ("simplevla", (512, 512, 512, 512, 512), 10, OPEN, 1, "openvla"),
        ("lerobot", (280, 280, 300, 520, 400), 10, OPEN, 2, "lerobot"),
    ],
)
def test_the_published_settings(
    name: str, horizons: tuple[int, ...], settle: int, action: list[float], cameras: int, images: str
) -> None:
    found = protocol(name)
    suites = ("libero_spatial", "libero_object", "libero_goal", "libero_10", "libero_90")
    assert tuple(found.horizon(replace(TASK, suite=suite)) for suite in suites) == horizons
    assert found.settle_actions().tolist() == [action] * settle
    assert found.settle_actions().dtype == np.float32
    assert found.cameras is not None
    assert len(found.cameras) == cameras
    sizes = (None, 256) if name == "lerobot" else (256, 224)
    assert (found.images, found.render_size, found.policy_size) == (images, *sizes)


def test_the_built_in_suites_have_their_counterparts_horizons_and_native_keeps_the_tasks() -> None:
    assert protocol("openvla_oft").horizon(TASK) == 220
    assert protocol("openvla_oft").horizon(replace(TASK, suite="tabletop_long")) == 520
    assert protocol("native").horizon(TASK) == TASK.max_episode_steps
    assert protocol("native").settle_actions().shape == (0, 7)


def test_a_preset_describes_itself_whole() -> None:
    for preset in PROTOCOLS.values():
        assert preset.describe().keys() == {f.name for f in fields(Protocol)}
    with pytest.raises(UserError, match="Did you mean 'openvla_oft'"):
        protocol("openvla_otf")


def test_deviations_name_what_differs_and_nothing_else() -> None:
    oft = protocol("openvla_oft")
    assert deviations(oft, size=224, cameras=2, proprio=True, gripper="zero_one", steps_per_decision=8) == []
    found = deviations(oft, size=64, cameras=2, proprio=False, gripper="direct", steps_per_decision=8)
    assert [line.partition(":")[0] for line in found] == ["picture side", "reads proprio", "gripper values"]
    native = protocol("native")
    assert deviations(native, size=64, cameras=2, proprio=True, gripper="direct", steps_per_decision=4) == []


class Script:
    """A world whose goal holds in the steps named in `held`, by initial state; it counts settle steps too."""

    def __init__(self, held: dict[int, set[int]], horizon: int, fails: dict[int, int] | None = None) -> None:
        self.num_envs = 4
        self.info = env_info(
            "script", 7, cameras=("front", "hand"), image_shape=(4, 4), proprio_dim=8, max_episode_steps=horizon
        )
        self.held, self.horizon, self.fails = held, horizon, fails or {}
        self.step_of: dict[int, int] = {}
        self.spec: dict[int, EpisodeSpec] = {}
        self.actions: list[torch.Tensor] = []

    def reset(self, env_ids: Sequence[int], episodes: Sequence[EpisodeSpec]) -> None:
        for env_id, spec in zip(env_ids, episodes, strict=True):
            self.spec[env_id], self.step_of[env_id] = spec, 0

    def step(self, env_ids: Sequence[int], actions: torch.Tensor) -> ChunkResult:
        self.actions.append(actions)
        rows, steps = actions.shape[:2]
        out = ChunkResult.zeros(rows, steps)
        for row, env_id in enumerate(env_ids):
            for k in range(steps):
                self.step_of[env_id] += 1
                out.steps_taken[row] += 1
                out.failed[row] = self.step_of[env_id] == self.fails.get(self.spec[env_id].init_state)
                if out.failed[row]:
                    break
                out.reward[row, k] = self.step_of[env_id] in self.held.get(self.spec[env_id].init_state, ())
                if self.step_of[env_id] == self.horizon:
                    out.truncated[row] = True
                    break
            out.success[row] = out.reward[row].any()
        return out

    def observe(self, env_ids: Sequence[int], out: Observation) -> None:
        for row, env_id in enumerate(env_ids):
            out.images[row, 0], out.images[row, 1] = self.step_of[env_id], 200
            out.instruction[row] = self.spec[env_id].task

    def new_observation(self, rows: int) -> Observation:
        return self.info.new_observation(rows)

    def frame(self, env_id: int, camera: str, size: int) -> Array:
        return np.zeros((size, size, 3), np.uint8)

    def close(self) -> None:
        self.step_of = {}


def episodes(*states: int) -> list[EpisodeSpec]:
    return [EpisodeSpec(10 + state, "a/x", state, 1) for state in states]


def run(env: ProtocolEnv, env_ids: list[int], chunk: int) -> list[ChunkResult]:
    """Step until every env has ended."""
    results, live = [], list(env_ids)
    while live:
        result = env.step(live, torch.ones(len(live), chunk, 7))
        results.append(result)
        over = result.terminated | result.truncated | result.failed
        live = [env_id for env_id, ended in zip(live, over, strict=True) if not ended]
    return results


OFT = protocol("openvla_oft")


def test_settling_comes_first_with_its_own_action_and_its_success_counts_nothing() -> None:
    world = Script({0: {3}}, horizon=14)
    env = ProtocolEnv(world, OFT, image_size=4, cameras=2)
    env.reset([0], episodes(0))
    assert world.actions[0].tolist() == [[OPEN] * 10]
    results = run(env, [0], chunk=4)
    assert len(results) == 1
    assert results[0].truncated[0]
    assert not results[0].reward.any()
    assert results[0].steps_taken[0] == 4


def test_an_episode_ends_at_its_first_success_within_the_chunk() -> None:
    env = ProtocolEnv(Script({0: {12, 13}, 1: set()}, horizon=18), OFT, image_size=4, cameras=2)
    env.reset([0, 1], episodes(0, 1))
    first, second = run(env, [0, 1], chunk=4)
    assert (first.terminated.tolist(), first.success.tolist()) == ([True, False], [True, False])
    assert first.steps_taken.tolist() == [2, 4]
    assert first.reward.tolist() == [[0, 1, 0, 0], [0, 0, 0, 0]]
    assert second.truncated.tolist() == [True]


@pytest.mark.parametrize(("held", "at_end"), [({12, 13}, False), ({12, 18}, True), ({18}, True), (set(), False)])
def test_running_on_shows_how_it_ends_and_pays_the_first_success_only(held: set[int], at_end: bool) -> None:
    env = ProtocolEnv(Script({0: held}, horizon=18), OFT, image_size=4, cameras=2, run_on=True)
    env.reset([2], episodes(0))
    results = run(env, [2], chunk=4)
    assert [bool(r.terminated[0]) for r in results] == [False, False]
    assert bool(results[-1].truncated[0])
    assert sum(float(r.reward.sum()) for r in results) == float(bool(held))
    assert any(r.success[0] for r in results) == bool(held)
    assert env.at_end(10) is at_end
    env.reset([2], episodes(5))
    run(env, [2], chunk=3)
    assert env.at_end(15) is False


def test_a_simulator_that_breaks_while_settling_fails_its_own_episode_only() -> None:
    env = ProtocolEnv(Script({1: {12}}, horizon=18, fails={0: 4}), OFT, image_size=4, cameras=2)
    env.reset([0, 1], episodes(0, 1))
    result = env.step([0, 1], torch.zeros(2, 4, 7))
    assert result.failed.tolist() == [True, False]
    assert (result.terminated.tolist(), result.success.tolist()) == ([False, True], [False, True])
    env.reset([0], episodes(7))
    assert not env.step([0], torch.zeros(1, 4, 7)).failed[0]


def test_all_slots_broken() -> None:
    env = ProtocolEnv(Script({}, horizon=18, fails={0: 4}), OFT, image_size=4, cameras=2)
    env.reset([0], episodes(0))
    assert env.step([0], torch.zeros(1, 4, 7)).failed.tolist() == [True]


def test_a_horizon_without_room_to_settle_is_noticed() -> None:
    env = ProtocolEnv(Script({}, horizon=10), OFT, image_size=4, cameras=2)
    with pytest.raises(RuntimeError, match="while it settled"):
        env.reset([0], episodes(0))


def test_pictures_are_prepared_and_only_the_policys_cameras_are_shown() -> None:
    def prepare(frames: Array, out: Array) -> None:
        assert frames.shape == (1, 1, 4, 4, 3)
        out[:] = frames[:, :, :2, :2] + 1

    env = ProtocolEnv(Script({}, horizon=99), OFT, image_size=2, cameras=1, prepare=prepare)
    env.reset([3], episodes(0))
    obs = env.new_observation(3)
    env.observe([3], obs)
    assert obs.images.shape == (3, 1, 2, 2, 3)
    assert (obs.images[0] == 11).all()
    assert not obs.images[1:].any()
    assert obs.instruction[0] == "a/x"
    assert (env.info.cameras, env.info.image_shape, env.info.max_episode_steps) == (("front",), (2, 2), 89)
    obs.check()


def test_an_episode_can_go_by_another_name_inside() -> None:
    world = Script({}, horizon=99)
    env = ProtocolEnv(world, protocol("native"), image_size=4, cameras=2, translate=lambda s: replace(s, task="other"))
    env.reset([0], episodes(0))
    assert world.spec[0].task == "other"
    assert world.actions == []


def test_rows_that_the_simulator_could_not_show_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script({}, horizon=99)
    env = ProtocolEnv(script, OFT, image_size=4, cameras=2)
    env.reset([0, 1], episodes(0, 1))
    assert env.observe([0, 1], env.new_observation(2)) is None
    monkeypatch.setattr(script, "observe", lambda env_ids, out: [1])
    assert env.observe([0, 1], env.new_observation(2)) == [1]
