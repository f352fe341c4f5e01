"""A state on the way, put back: the episode goes on bit for bit, and begins nowhere else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch

from embodied_rl.errors import UserError
from embodied_rl.sim.mujoco import snapshot
from embodied_rl.sim.mujoco.episodes import TrainingEpisodes, load_bank
from embodied_rl.sim.mujoco.vec_env import NativeVecEnv
from embodied_rl.sim.render import make_renderer
from embodied_rl.sim.state.staged import Shaping
from embodied_rl.sim.state.vector import StateLayout
from embodied_rl.sim.tabletop import load_suite
from embodied_rl.sim.tabletop.expert import Expert
from embodied_rl.types import Array, EpisodeSpec, Observation

TASKS = load_suite("tabletop_long")[2:4]
"""With a drawer that opens, and with two objects."""
TASK = TASKS[0]
BEFORE, AFTER = 70, 12


def open_env(bank: Path | None = None, *, shaped: bool = False, state: bool = True) -> NativeVecEnv:
    return NativeVecEnv(
        TASKS,
        2,
        image_size=24,
        renderer=make_renderer("raycast", ()),
        threads=1,
        layout=StateLayout.of(TASKS) if state else None,
        shaping=Shaping("shaped", 0.99) if shaped else None,
        training=TrainingEpisodes(start_bank=bank),
    )


def look(env: NativeVecEnv, env_id: int) -> Observation:
    out = env.new_observation(1)
    env.observe([env_id], out)
    return out


def same(one: Observation, two: Observation) -> bool:
    assert one.state is not None
    assert two.state is not None
    parts = ((one.images, two.images), (one.proprio, two.proprio), (one.state, two.state))
    return one.instruction == two.instruction and all(torch.equal(a, b) for a, b in parts)


def onward(env: NativeVecEnv, env_id: int, actions: Array) -> list[tuple[Observation, list[torch.Tensor], Array]]:
    """What every further step shows and pays, and where everything is then."""
    found = []
    for action in actions:
        result = env.step([env_id], torch.from_numpy(action[None, None].astype(np.float32)))
        told = [result.reward, result.terminated, result.truncated, result.success]
        found.append((look(env, env_id), told, np.concatenate([env.data(env_id).qpos, env.data(env_id).qvel])))
    return found


def equal(
    one: list[tuple[Observation, list[torch.Tensor], Array]], two: list[tuple[Observation, list[torch.Tensor], Array]]
) -> bool:
    return all(
        same(a[0], b[0])
        and all(torch.equal(x, y) for x, y in zip(a[1], b[1], strict=True))
        and np.array_equal(a[2], b[2])
        for a, b in zip(one, two, strict=True)
    )


@pytest.fixture(scope="module")
def demonstration() -> tuple[Array, Array, Observation, list[tuple[Observation, list[torch.Tensor], Array]]]:
    """The state after BEFORE steps of the expert, AFTER further actions with turns in them, and what they led to."""
    with closing(open_env(shaped=True)) as env:
        env.reset([0], [EpisodeSpec(0, TASK.name, 3, 0)])
        expert = Expert(TASK, env.model(0))
        expert.reset()
        for _ in range(BEFORE):
            env.step([0], torch.from_numpy(expert.act(env.data(0))[None, None].astype(np.float32)))
        row, seen = env.snapshot(0), look(env, 0)
        actions = np.stack([expert.act(env.data(0)) for _ in range(AFTER)])
        actions[5:, 3:6] = np.random.default_rng(0).uniform(-0.5, 0.5, (AFTER - 5, 3))
        return row, actions, seen, onward(env, 0, actions)


@pytest.fixture
def bank(demonstration: tuple[Array, ...], tmp_path: Path) -> Path:
    path = tmp_path / "start_bank.npz"
    np.savez(path, **{TASK.name: demonstration[0][None]})  # pyright: ignore[reportArgumentType]
    return path


FROM_BANK = EpisodeSpec(9, TASK.name, 20, 5, bank_row=0)


@pytest.fixture
def env(bank: Path) -> Iterator[NativeVecEnv]:
    with closing(open_env(bank, shaped=True)) as made:
        yield made


def test_an_episode_goes_on_bit_for_bit(
    env: NativeVecEnv,
    demonstration: tuple[Array, Array, Observation, list[tuple[Observation, list[torch.Tensor], Array]]],
) -> None:
    _, actions, seen, then = demonstration
    env.reset([1], [EpisodeSpec(1, TASKS[1].name, 0, 1)])  # what was there before leaves nothing
    env.step([1], torch.ones(1, 5, 7))
    for _ in range(2):
        env.reset([1], [FROM_BANK])
        assert same(look(env, 1), seen)
        assert equal(onward(env, 1, actions), then)


def test_without_the_controllers_memory_it_does_not(
    env: NativeVecEnv,
    demonstration: tuple[Array, Array, Observation, list[tuple[Observation, list[torch.Tensor], Array]]],
) -> None:
    """The broken variant: positions and velocities alone."""
    _, actions, _, then = demonstration
    env.reset([1], [FROM_BANK])
    data = env.data(1)
    state = np.concatenate([[data.time], data.qpos, data.qvel])
    env.world(1)[1].reset(state)
    assert not equal(onward(env, 1, actions), then)


def test_the_time_that_was_left_is_left(env: NativeVecEnv) -> None:
    env.reset([0, 1], [FROM_BANK, EpisodeSpec(1, TASK.name, 0, 1)])
    left = TASK.max_episode_steps - BEFORE
    still = torch.zeros(2, left + 5, 7)
    still[..., 6] = -1.0
    result = env.step([0, 1], still)
    assert result.steps_taken.tolist() == [left, left + 5]
    assert result.truncated.tolist() == [True, False]


def test_a_snapshot_of_a_restored_state_is_that_state(env: NativeVecEnv, demonstration: tuple[Array, ...]) -> None:
    env.reset([0], [FROM_BANK])
    np.testing.assert_array_equal(env.snapshot(0), demonstration[0])


def test_an_initial_state_after_it_is_the_tasks_own(env: NativeVecEnv) -> None:
    spec = EpisodeSpec(2, TASK.name, 4, 0)
    env.reset([0], [FROM_BANK])
    env.reset([0], [spec])
    with closing(open_env(shaped=True)) as other:
        other.reset([0], [spec])
        assert same(look(env, 0), look(other, 0))
        actions = np.random.default_rng(1).uniform(-1, 1, (3, 7))
        assert equal(onward(env, 0, actions), onward(other, 0, actions))


def test_what_the_bank_lacks_is_refused(env: NativeVecEnv, bank: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no state 1 of"):
        env.reset([0], [EpisodeSpec(0, TASK.name, 0, 0, bank_row=1)])
    with closing(open_env()) as plain, pytest.raises(UserError, match="in a start bank"):
        plain.reset([0], [FROM_BANK])
    with pytest.raises(UserError, match="is of another model"):
        snapshot.restore(env.world(0)[1], np.zeros(7))
    (tmp_path / "broken.npz").write_bytes(b"none")
    with pytest.raises(UserError, match="cannot read the start bank"):
        open_env(tmp_path / "broken.npz")


@pytest.mark.parametrize("broken", ["half", "no end", "zeros within", "nothing"])
def test_a_broken_bank_is_refused_in_one_line(broken: str, tmp_path: Path) -> None:
    path = tmp_path / "start_bank.npz"
    np.savez_compressed(path, **{TASK.name: np.random.default_rng(0).normal(size=(9, 99))})  # pyright: ignore[reportArgumentType]
    whole = path.read_bytes()
    half = len(whole) // 2
    zeros = whole[:half] + bytes(64) + whole[half + 64 :]
    path.write_bytes({"half": whole[:half], "no end": whole[:-30], "zeros within": zeros, "nothing": b""}[broken])
    with pytest.raises(UserError, match="cannot read the start bank") as refused:
        load_bank(path)
    assert "\n" not in str(refused.value)


def after_an_earlier_episode(env: NativeVecEnv, spec: EpisodeSpec) -> Array:
    """The state in which `spec` begins in an env whose episode before reached the goal, moving."""
    env.reset([0], [EpisodeSpec(8, TASK.name, 5, 0)])
    env.step([0], torch.from_numpy(np.random.default_rng(2).uniform(-1, 1, (1, 7, 7)).astype(np.float32)))
    env.world(0)[1].held[:] = True
    env.reset([0], [spec])
    return env.snapshot(0)


def test_the_first_state_has_nothing_of_the_episode_before() -> None:
    spec = EpisodeSpec(2, TASK.name, 4, 0)
    with closing(open_env(state=False)) as env, closing(open_env(shaped=True)) as shaped:
        env.reset([0], [spec])
        fresh = env.snapshot(0)
        np.testing.assert_array_equal(after_an_earlier_episode(env, spec), fresh)
        assert not env.held(0).any()
        shaped.reset([1], [spec])
        np.testing.assert_array_equal(shaped.snapshot(1), fresh)


def test_an_episode_from_a_first_state_pays_what_the_demonstration_s_did(tmp_path: Path) -> None:
    spec, path = EpisodeSpec(2, TASK.name, 4, 0), tmp_path / "start_bank.npz"
    with closing(open_env(state=False)) as env:
        np.savez(path, **{TASK.name: after_an_earlier_episode(env, spec)[None]})  # pyright: ignore[reportArgumentType]
    with closing(open_env(path, shaped=True)) as env:
        actions = np.random.default_rng(1).uniform(-1, 1, (3, 7))
        env.reset([0, 1], [spec, FROM_BANK])
        assert same(look(env, 1), look(env, 0))
        assert equal(onward(env, 1, actions), onward(env, 0, actions))


def test_what_holds_before_the_first_step_is_judged_and_the_env_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a goal is reached in part from the start."""
    with closing(open_env()) as env:
        env.reset([0], [EpisodeSpec(2, TASK.name, 4, 0)])
        world, row = env.world(0)[1], env.snapshot(0)
        monkeypatch.setattr(world, "judge_start", lambda: world.held.fill(True))
        assert (env.snapshot(0) != row).sum() == world.held.size
        assert not world.held.any()
