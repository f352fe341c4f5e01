"""The contract of `embodied_rl.vec_env.VecEnv`, as tests that every backend passes.

A backend's test module makes a subclass whose `make` opens its env:

    class TestMyEnv(VecEnvContract):
        tasks = ("suite/reach", "suite/push")

        def make(self, num_envs: int) -> VecEnv:
            return MyEnv(num_envs)
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from embodied_rl.types import ChunkResult, EpisodeSpec, Observation
from embodied_rl.vec_env import EnvInfo, VecEnv

K = 4


class VecEnvContract:
    """Tests of N = 3 envs. Each of `tasks` has initial states 0 to 3."""

    tasks: Sequence[str]

    def make(self, num_envs: int) -> VecEnv:
        """Open the env."""
        raise NotImplementedError

    @pytest.fixture
    def env(self) -> Iterator[VecEnv]:
        with closing(self.make(3)) as env:
            yield env

    def specs(self, count: int) -> list[EpisodeSpec]:
        """Episodes that differ in task, initial state and seed."""
        return [EpisodeSpec(i, self.tasks[i % len(self.tasks)], i % 4, 100 + i) for i in range(count)]

    def test_info_describes_the_env(self, env: VecEnv) -> None:
        info = env.info
        assert env.num_envs == 3
        assert all((info.backend, info.suite, info.simulator, info.renderer))
        assert len(info.action_low) == len(info.action_high) == info.action_dim > 0
        assert all(low < high for low, high in zip(info.action_low, info.action_high, strict=True))
        assert len(info.image_shape) == 2
        assert not info.cameras or min(info.image_shape) > 0
        assert info.control_hz > 0
        assert info.max_episode_steps > 0
        torch.device(info.device)

    def test_observations_have_the_documented_shapes(self, env: VecEnv) -> None:
        env.reset([2, 0], self.specs(2))
        out, info = env.new_observation(3), env.info
        assert not env.observe([2, 0], out)
        out.check()
        assert out.images.shape == (3, len(info.cameras), *info.image_shape, 3)
        assert out.proprio.shape == (3, info.proprio_dim)
        assert (out.state is None) == (info.state_dim == 0)
        assert out.images.device == out.proprio.device == torch.device(info.device)
        assert torch.isfinite(out.proprio).all()
        assert all(out.instruction[:2])
        assert not out.instruction[2]  # further rows stay as they were
        assert not out.images[2].any()
        assert not out.proprio[2].any()

    def test_chunk_results_have_the_documented_shapes_and_ranges(self, env: VecEnv) -> None:
        env.reset([0, 2], self.specs(2))
        check_result(env.step([0, 2], draw(env.info, 2)), env.info, 2)

    def test_what_happens_does_not_depend_on_the_env_id(self, env: VecEnv) -> None:
        one, actions = self.specs(2)[1], draw(env.info, 1)
        with closing(self.make(1)) as alone:
            alone.reset([0], [one])
            seen = [run(alone, [0], actions)]
        env.reset([0, 1], self.specs(2))
        both = torch.cat([draw(env.info, 1, seed=5), actions])
        result, obs = run(env, [0, 1], both)
        env.reset([2], [one])
        seen += [run(env, [2], actions), (rows_of(result, 1), obs.rows([1]))]
        for again, observed in seen[1:]:
            same_results(seen[0][0], again)
            same_observations(seen[0][1], observed)

    def test_a_chunk_is_its_steps(self, env: VecEnv) -> None:
        spec, actions = self.specs(1)[0], draw(env.info, 1)
        env.reset([0, 1], [spec, spec])
        whole, seen = run(env, [0], actions)
        steps = []
        for k in range(int(whole.steps_taken[0])):
            steps.append(env.step([1], actions[:, k : k + 1]))
        rewards = torch.cat([step.reward for step in steps], dim=1)
        assert torch.equal(rewards, whole.reward[:, : len(steps)])
        assert torch.equal(torch.stack([step.success for step in steps]).any(dim=0), whole.success)
        for name in ("terminated", "truncated", "failed"):
            assert torch.equal(getattr(steps[-1], name), getattr(whole, name))
        out = env.new_observation(1)
        env.observe([1], out)
        same_observations(seen, out)

    def test_the_horizon_stops_a_chunk_early_and_truncates(self, env: VecEnv) -> None:
        horizon = env.info.max_episode_steps
        env.reset([1], self.specs(1))
        still = torch.zeros(1, horizon + 3, env.info.action_dim)
        result = env.step([1], still)
        check_result(result, env.info, 1)
        assert (result.terminated | result.truncated).all()
        assert int(result.steps_taken) <= horizon
        assert not result.reward[0, int(result.steps_taken) :].any()

    def test_an_ended_episode_shows_its_end_and_is_not_reset_by_itself(self, env: VecEnv) -> None:
        end(env, 0, self.specs(1)[0])
        twice = [env.new_observation(1) for _ in range(2)]
        for out in twice:
            assert not env.observe([0], out)
        same_observations(*twice)
        first = env.new_observation(1)
        env.reset([1], self.specs(1))
        env.observe([1], first)
        assert twice[0].instruction == first.instruction
        refused(env, [0])
        env.reset([0], self.specs(1))
        env.observe([0], twice[0])
        same_observations(first, twice[0])
        assert not env.step([0], draw(env.info, 1)).failed.any()

    def test_an_env_that_was_never_reset_is_not_stepped(self, env: VecEnv) -> None:
        refused(env, [1])

    def test_a_reset_of_some_envs_leaves_the_others_alone(self, env: VecEnv) -> None:
        actions = draw(env.info, 1)
        ends = []
        for disturbed in (False, True):
            end(env, 0, self.specs(1)[0])
            end(env, 1, self.specs(1)[0])
            env.reset([0, 1], self.specs(2))
            env.step([0], actions[:, :1])
            if disturbed:
                end(env, 1)
                env.reset([1], self.specs(3)[2:])
            ends.append(run(env, [0], actions))
        same_results(ends[0][0], ends[1][0])
        same_observations(ends[0][1], ends[1][1])

    def test_a_frame_is_rendered_on_demand_at_any_size(self, env: VecEnv) -> None:
        env.reset([2], self.specs(1))
        cameras = env.info.cameras or ("",)  # '' is the view of a backend without images
        try:
            frames = [env.frame(2, camera, 24) for camera in cameras]
        except NotImplementedError:
            return
        if not frames:
            return
        for frame in frames:
            assert (frame.dtype, frame.shape) == (np.uint8, (24, 24, 3))
        before, after = env.new_observation(1), env.new_observation(1)
        env.observe([2], before)
        env.frame(2, cameras[0], 24)
        env.observe([2], after)
        same_observations(before, after)
        end(env, 2)
        assert env.frame(2, cameras[0], 24).any()

    @pytest.mark.parametrize("bad", [torch.nan, torch.inf])
    def test_actions_that_are_not_finite_are_refused_and_move_nobody(self, env: VecEnv, bad: float) -> None:
        env.reset([0, 1], self.specs(2))
        actions = draw(env.info, 2)
        sick = actions.clone()
        sick[1, K - 1, 0] = bad
        before, after = env.new_observation(2), env.new_observation(2)
        env.observe([0, 1], before)
        with pytest.raises(ValueError, match="non-finite"):
            env.step([0, 1], sick)
        env.observe([0, 1], after)
        same_observations(before, after)
        assert not env.step([0, 1], actions).failed.any()

    def test_misshapen_actions_are_refused(self, env: VecEnv) -> None:
        env.reset([0], self.specs(1))
        with pytest.raises(ValueError, match="float32"):
            env.step([0], torch.zeros(1, K, env.info.action_dim, dtype=torch.float64))
        with pytest.raises(ValueError, match=r"float32 \[N,K,A\]"):
            env.step([0], torch.zeros(1, env.info.action_dim))

    def test_actions_are_clipped_to_their_bounds(self, env: VecEnv) -> None:
        spec, info = self.specs(1)[0], env.info
        far = 3 * draw(info, 1)
        near = far.clamp(torch.tensor(info.action_low), torch.tensor(info.action_high))
        env.reset([0, 1], [spec, spec])
        one, two = run(env, [0], far), run(env, [1], near)
        same_results(one[0], two[0])
        same_observations(one[1], two[1])


class SuccessContract:
    """A further test where an episode is known to succeed, of the same fixture `env`."""

    success: tuple[EpisodeSpec, torch.Tensor]
    """An episode, and actions float32 [1, T, A] in which its goal holds."""

    def test_success_is_paid_and_reported(self, env: VecEnv) -> None:
        spec, actions = self.success
        env.reset([0], [spec])
        result = env.step([0], actions)
        check_result(result, env.info, 1)
        assert result.success.all()
        assert result.reward.sum() > 0
        if result.terminated.all():
            assert not result.truncated.any()
            assert result.reward[0, int(result.steps_taken) - 1] > 0


class EnvIdContract:
    """A further test of the same fixture `env`: ids that are none, or come twice, are refused and move nobody."""

    specs: Callable[[int], list[EpisodeSpec]]

    @pytest.mark.parametrize("wrong", [[1, 1], [-1, 0], [0, 3]])
    def test_wrong_env_ids_are_refused_and_move_nobody(self, env: VecEnv, wrong: list[int]) -> None:
        env.reset([0, 1, 2], self.specs(3))
        before, after = env.new_observation(3), env.new_observation(3)
        env.observe([0, 1, 2], before)
        with pytest.raises(ValueError, match="env"):
            env.reset(wrong, self.specs(2))
        with pytest.raises(ValueError, match="env"):
            env.step(wrong, draw(env.info, 2))
        with pytest.raises(ValueError, match="2 envs for 1 episodes"):
            env.reset([0, 1], self.specs(1))
        env.observe([0, 1, 2], after)
        same_observations(before, after)


class LeakContract:
    """A further test of cheap envs, of the same fixture `env`: 1,000 resets leave nothing behind."""

    resets = 1000
    specs: Callable[[int], list[EpisodeSpec]]

    def test_many_resets_leave_nothing_behind(self, env: VecEnv) -> None:
        out = env.new_observation(3)

        def use(rounds: int) -> None:
            for number in range(rounds):
                env.reset([0, 1, 2], self.specs(3)[number % 3 :] + self.specs(3)[: number % 3])
                env.step([0, 1, 2], draw(env.info, 3, 1))
                env.observe([0, 1, 2], out)

        use(self.resets // 9)  # until caches are full
        held = [_held()]
        for _ in range(2):
            use(self.resets // 6)
            held.append(_held())
        objects, _, threads, files = (now - then for now, then in zip(held[-1], held[0], strict=True))
        assert threads <= 0
        assert files <= 0
        assert objects < self.resets / 10
        # A leak grows in every window. The allocator and threads of other tests take memory once, at any time.
        assert min(later[1] - earlier[1] for earlier, later in pairwise(held)) < 8 << 20


def _held() -> tuple[int, int, int, int]:
    """Of this process: Python objects, its own memory (bytes), threads, open files."""
    gc.collect()
    proc = Path("/proc/self")
    status = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines())
    # Not the whole resident set: a computer short of memory drops libraries' pages and swaps others.
    memory = sum(int(status[name].split()[0]) << 10 for name in ("RssAnon", "VmSwap"))
    threads, files = (len(os.listdir(proc / name)) for name in ("task", "fd"))
    return len(gc.get_objects()), memory, threads, files


def draw(info: EnvInfo, rows: int, steps: int = K, seed: int = 0) -> torch.Tensor:
    """Random actions float32 [rows, steps, A] in [-1, 1]."""
    values = np.random.default_rng(seed).uniform(-1, 1, (rows, steps, info.action_dim))
    return torch.from_numpy(values.astype(np.float32))


def run(env: VecEnv, env_ids: Sequence[int], actions: torch.Tensor) -> tuple[ChunkResult, Observation]:
    """Step, then observe."""
    result, out = env.step(env_ids, actions), env.new_observation(len(env_ids))
    assert not env.observe(env_ids, out)
    return result, out


def end(env: VecEnv, env_id: int, spec: EpisodeSpec | None = None) -> None:
    """Bring the env's episode, or that of `spec`, to its end."""
    if spec is not None:
        env.reset([env_id], [spec])
    result = env.step([env_id], torch.zeros(1, env.info.max_episode_steps, env.info.action_dim))
    assert (result.terminated | result.truncated).all()


def refused(env: VecEnv, env_ids: Sequence[int]) -> None:
    """A step without a running episode is an error, or fails; it is never an episode of its own."""
    try:
        result = env.step(env_ids, draw(env.info, len(env_ids)))
    except (ValueError, AssertionError):
        return
    assert result.failed.all()


def check_result(result: ChunkResult, info: EnvInfo, rows: int) -> None:
    """Shapes, dtypes and what must hold in every result."""
    steps = result.reward.shape[1]
    assert result.reward.shape == (rows, steps)
    assert result.reward.dtype == torch.float32
    assert result.reward.device == torch.device(info.device)
    for name in ("terminated", "truncated", "success", "failed"):
        assert getattr(result, name).dtype == torch.bool
        assert getattr(result, name).shape == (rows,)
    assert info.has_success or not result.success.any()
    assert result.steps_taken.dtype == torch.int32
    assert ((result.steps_taken >= 1) & (result.steps_taken <= steps)).all()
    assert torch.isfinite(result.reward).all()
    assert not (result.terminated & result.truncated).any()
    assert not (result.failed & (result.terminated | result.truncated)).any()
    ran = torch.arange(steps) < result.steps_taken.cpu()[:, None]
    assert not result.reward.cpu()[~ran].any()
    over = result.terminated | result.truncated | result.failed
    assert ((result.steps_taken == steps) | over).all()  # only an end stops a chunk early
    assert result.human.dtype == torch.int32
    assert ((result.human >= 0) & (result.human <= result.steps_taken)).all()
    assert (result.executed is None) == (not result.human.any())
    assert not _executed(result)[result.human == 0].any()


def rows_of(result: ChunkResult, row: int) -> ChunkResult:
    """One row of a result."""
    values: dict[str, Any] = {name: getattr(result, name) for name in ChunkResult.__slots__}
    return ChunkResult(**{name: value[row : row + 1] for name, value in values.items() if value is not None})


def same_results(one: ChunkResult, two: ChunkResult) -> None:
    """Bit for bit."""
    for name in set(ChunkResult.__slots__) - {"executed"}:
        assert torch.equal(getattr(one, name), getattr(two, name)), name
    done, again = _executed(one), _executed(two)
    assert not done.numel() or not again.numel() or torch.equal(done, again)


def _executed(result: ChunkResult) -> torch.Tensor:
    """What was done where a person acted, [N, K, A]; nothing where none did."""
    return result.reward.new_zeros((*result.reward.shape, 0)) if result.executed is None else result.executed


def same_observations(one: Observation, two: Observation) -> None:
    """Bit for bit."""
    assert one.instruction == two.instruction
    for a, b in ((one.images, two.images), (one.proprio, two.proprio), (one.state, two.state)):
        assert (a is None) == (b is None)
        assert a is None or b is None or torch.equal(a, b)
