"""The isaacgym view: VecTask's surface, buffers and counters, resets, failed episodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
import torch

import embodied_rl as erl
from embodied_rl.errors import UserError
from embodied_rl.factory.sampled_episodes import SampledEpisodes
from embodied_rl.sim.views.isaacgym import IsaacGymEnv
from embodied_rl.types import ChunkResult, EpisodeSpec, Observation
from tests.toy_world import HELDOUT, HORIZON, TASKS, ToyEnv

N = 6


class World(ToyEnv):
    """The toy with a state (position, goal, steps), and resets that may replace an episode."""

    def __init__(self, num_envs: int = N, breaks: dict[int, int] | None = None) -> None:
        super().__init__(num_envs, breaks=breaks)
        self.info = replace(self.info, state_dim=5)
        self.train_states, self.heldout_states = TASKS, HELDOUT

    def reset(self, env_ids: Sequence[int], episodes: Sequence[EpisodeSpec]) -> None:
        for env_id in env_ids:
            self._spec[env_id] = None
        super().reset(env_ids, episodes)

    def observe(self, env_ids: Sequence[int], out: Observation) -> None:
        super().observe(env_ids, out)
        assert out.state is not None
        for row, env_id in enumerate(env_ids):
            both = [*self._position[env_id], *self._goal[env_id], self._steps[env_id]]
            out.state[row] = torch.tensor(both)


class Aliased(IsaacGymEnv):
    """Hands out its own buffer."""

    def _observations(self) -> dict[str, torch.Tensor]:
        return {"obs": self.obs_buf}


def view(world: World | None = None, cls: type[IsaacGymEnv] = IsaacGymEnv, seed: int = 0, **options) -> IsaacGymEnv:
    world = world or World()
    return cls(world, SampledEpisodes(world, seed), **options)


def actions(steps: int, seed: int = 0) -> Iterator[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        yield torch.rand((N, 2), generator=generator) * 2 - 1


def test_the_surface_is_vectasks() -> None:
    env = view()
    assert (env.num_envs, env.num_obs, env.num_acts, env.num_actions, env.num_states) == (N, 5, 2, 2, 0)
    assert env.max_episode_length == HORIZON
    assert env.observation_space.shape == (5,)
    assert (env.action_space.shape, float(env.action_space.low[0])) == ((2,), -1.0)
    assert env.device == env.rl_device == env.sim_device == "cpu"
    shapes = {"obs_buf": (N, 5), "rew_buf": (N,), "reset_buf": (N,), "progress_buf": (N,), "timeout_buf": (N,)}
    assert {name: tuple(getattr(env, name).shape) for name in shapes} == shapes
    assert env.reset_buf.tolist() == [1] * N  # nothing runs yet, as in Isaac Gym
    obs, reward, reset, extras = env.step(env.zero_actions())  # begins by itself
    assert obs["obs"].shape == (N, 5)
    assert (reward.dtype, reset.dtype, extras["time_outs"].dtype) == (torch.float32, torch.int64, torch.bool)


@pytest.mark.parametrize("mode", ["same_step", "next_step"])
def test_counters_and_masks_follow_the_episodes(mode) -> None:
    env, ended = view(reset_mode=mode), 0
    env.reset()
    steps = torch.zeros(N, dtype=torch.long)
    previous = torch.zeros(N, dtype=torch.long)
    for action in actions(40):
        obs, reward, reset, extras = env.step(action)
        fresh = previous.bool() if mode == "next_step" else torch.zeros(N, dtype=torch.bool)
        assert torch.equal(extras["reset"], fresh)
        steps = torch.where(fresh, 0, steps + 1)
        assert torch.equal(reset, env.reset_buf)
        assert not reset[fresh].any()
        assert not reward[fresh].any()
        assert torch.equal(extras["success"] | extras["time_outs"], reset.bool())
        assert torch.equal(extras["time_outs"], env.timeout_buf)
        assert (steps[extras["time_outs"]] == HORIZON).all()
        if mode == "same_step":
            steps = torch.where(reset.bool(), 0, steps)
        assert torch.equal(env.progress_buf, steps)
        assert torch.equal(obs["obs"][:, 4].long(), steps)
        previous, ended = reset, ended + int(reset.sum())
    assert ended > N


def test_the_final_observation_is_that_before_the_reset() -> None:
    """Both modes run the same episodes, so next_step shows where same_step ended."""
    env = view()
    env.reset()
    seen = 0
    for action in actions(30):
        before = env.obs_buf.clone()
        obs, _, reset, extras = env.step(action)
        over = reset.bool()
        assert ("final_obs" in extras) == bool(over.any())
        if not over.any():
            continue
        moved = (before[over, :2] + 0.25 * action[over]).clamp(-1, 1)
        final = extras["final_obs"]
        torch.testing.assert_close(final[over, :2], moved)
        assert torch.equal(final[over, 2:4], before[over, 2:4])
        assert torch.equal(final[over, 4], before[over, 4] + 1)
        assert torch.equal(final[~over], obs["obs"][~over])
        assert not obs["obs"][over, 4].any()
        seen += int(over.sum())
    assert seen > N


@pytest.mark.parametrize(("cls", "sound"), [(IsaacGymEnv, True), (Aliased, False)])
def test_what_is_returned_is_a_clone(cls: type[IsaacGymEnv], sound: bool) -> None:
    env = view(cls=cls)
    first = env.reset()["obs"]
    kept = first.clone()
    for action in actions(3):
        _, reward, reset, extras = env.step(action)
    assert torch.equal(first, kept) == sound
    before = [tensor.clone() for tensor in (reward, reset, extras["time_outs"])]
    for action in actions(12, seed=1):
        env.step(action)
    assert all(torch.equal(*pair) for pair in zip(before, (reward, reset, extras["time_outs"]), strict=True))
    mine = {env.rew_buf.data_ptr(), env.reset_buf.data_ptr(), env.timeout_buf.data_ptr(), env.obs_buf.data_ptr()}
    assert not mine & {reward.data_ptr(), reset.data_ptr(), extras["time_outs"].data_ptr()}


def test_runs_repeat_and_another_seed_gives_other_episodes() -> None:
    runs = []
    for seed in (0, 0, 1):
        env = view(seed=seed)
        runs.append(torch.stack([env.reset()["obs"], *(env.step(action)[0]["obs"] for action in actions(25))]))
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])


@pytest.mark.parametrize("mode", ["same_step", "next_step"])
def test_a_failed_episode_is_dropped_counted_and_run_again(mode) -> None:
    world = World(breaks={1: 2, 3: 1})
    env = view(world, reset_mode=mode)
    env.reset()
    failed = 0
    for action in actions(30):
        before = env.obs_buf.clone()
        obs, reward, reset, extras = env.step(action)
        lost = extras["failed"]
        failed += int(lost.sum())
        assert extras["num_failed"] == failed
        assert (reset[lost] == 1).all()
        assert extras["time_outs"][lost].all()  # not a failure of the policy
        assert not reward[lost].any()
        assert not extras["success"][lost].any()
        last = extras["final_obs"] if mode == "same_step" and lost.any() else obs["obs"]
        assert torch.equal(last[lost], before[lost])  # the last sound observation
        if lost.any() and bool((reset.bool() == lost).all()):
            assert "episode" not in extras
    assert failed == 3
    first = {spec.episode_id: spec for spec in world.started[:N]}
    again = [spec for spec in world.started[N:] if spec.episode_id in (1, 3)]
    assert [spec.episode_id for spec in again].count(1) == 2
    assert all(spec.init_state == first[spec.episode_id].init_state for spec in again)


def test_some_episodes_can_be_begun_anew() -> None:
    env = view()
    env.reset()
    for action in actions(3):
        env.step(action)
    before = env.obs_buf.clone()
    env.reset_idx(torch.tensor([1, 4]))
    others = [0, 2, 3, 5]
    assert torch.equal(env.obs_buf[others], before[others])
    assert env.progress_buf[[1, 4]].tolist() == [0, 0]
    assert not env.obs_buf[[1, 4], 4].any()
    assert env.reset_done()[1].tolist() == []


def test_reset_done_begins_what_ended() -> None:
    env = view(reset_mode="next_step")
    env.reset()
    for action in actions(HORIZON):
        obs, _, reset, _ = env.step(action)
        ended = reset.nonzero().flatten().tolist()
        obs, ids = env.reset_done()
        assert ids.tolist() == ended
        assert not obs["obs"][ended, 4].any()
    assert not env.step(env.zero_actions())[3]["reset"].any()


@pytest.mark.parametrize("begin", [IsaacGymEnv.reset_done, IsaacGymEnv.reset, lambda env: env.reset_idx([1, 3])])
def test_a_failed_episode_begins_again_where_the_trainer_resets(begin) -> None:
    world = World(breaks={1: 1, 3: 1})
    episodes = SampledEpisodes(world, 0)
    env = IsaacGymEnv(world, episodes, reset_mode="next_step")
    env.reset()
    first = {spec.episode_id: spec for spec in world.started}
    failed: list[int] = []
    while not failed:
        failed = env.step(env.zero_actions())[3]["failed"].nonzero().flatten().tolist()
    begun = len(world.started)
    begin(env)
    again = [spec for spec in world.started[begun:] if spec.episode_id in failed]
    assert again == [first[episode] for episode in failed]
    assert not set(failed) & {spec.episode_id for spec in world.started[:begun][N:]}
    assert env.progress_buf[failed].tolist() == [0] * len(failed)


def test_a_trainer_may_spread_episodes_over_time() -> None:
    env = view()
    env.reset()
    env.progress_buf[2] = HORIZON - 1
    _, _, reset, extras = env.step(env.zero_actions())
    assert extras["time_outs"].tolist() == [False, False, True, False, False, False]
    assert torch.equal(reset.bool(), extras["time_outs"])
    assert env.progress_buf[2] == 0
    short = view(max_episode_length=2)
    short.reset()
    short.step(short.zero_actions())
    assert short.step(short.zero_actions())[3]["time_outs"].all()
    for length in (0, HORIZON + 1):
        with pytest.raises(UserError, match=f"must lie in 1..{HORIZON}, .* got {length}"):
            view(max_episode_length=length)


def test_parts_of_an_observation_are_chosen_by_name() -> None:
    env = view(obs=("proprio",), states=("state", "proprio"))
    obs = env.reset()
    assert (env.num_obs, env.num_states, env.state_space.shape) == (2, 7, (7,))
    assert torch.equal(obs["states"][:, :2], obs["obs"])
    assert torch.equal(env.get_state(), obs["states"])
    episodes = SampledEpisodes(World(2), 0)
    with pytest.raises(UserError, match="no 'state' to observe"):
        IsaacGymEnv(ToyEnv(2), episodes, obs=("state",))


class Wide(World):
    """Remembers its actions, which lie in [-2, 6] and without bounds."""

    def __init__(self) -> None:
        super().__init__()
        self.info = replace(self.info, action_low=(-2.0, -torch.inf), action_high=(6.0, torch.inf))

    def step(self, env_ids: Sequence[int], actions: torch.Tensor) -> ChunkResult:
        self.asked = actions
        return super().step(env_ids, actions)


def test_actions_are_scaled_to_the_bounds_and_checked() -> None:
    world = Wide()
    env = view(world)
    env.reset()
    env.step(torch.tensor([[-1.0, 0.5]] * 3 + [[9.0, -0.25]] * 3))
    assert world.asked[0, 0].tolist() == [-2.0, 0.5]
    assert world.asked[5, 0].tolist() == [6.0, -0.25]
    with pytest.raises(ValueError, match="non-finite"):
        env.step(torch.full((N, 2), torch.nan))
    with pytest.raises(ValueError, match=r"\[6, 2\]"):
        env.step(torch.zeros(N, 3))


def test_a_suite_opens_by_name_and_an_open_simulator_too() -> None:
    env = erl.make_isaacgym_env("tabletop_goal", 2, tasks=("turn_on_the_stove",), num_threads=1)
    assert env.reset()["obs"].shape == (2, 74)
    _, reward, _, _ = env.step(env.zero_actions())
    assert reward.tolist() == [0.0, 0.0]
    env.close()
    mine = World()
    assert erl.make_isaacgym_env(mine, seed=3).env is mine
    assert erl.make_isaacgym_env(mine, N).num_envs == N
    with pytest.raises(UserError, match=f"num_envs 2: .* open already, with {N}"):
        erl.make_isaacgym_env(mine, 2)
    with pytest.raises(UserError, match="open already"):
        erl.make_isaacgym_env(mine, reward="staged")
    with pytest.raises(UserError, match="no train_states"):
        erl.make_isaacgym_env(ToyEnv(2))  # type: ignore[arg-type]
