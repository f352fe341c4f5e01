"""EnvPool's throughput mode: what it keeps of the contract, and what it says that it does not."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

import pytest
import torch

from embodied_rl.errors import UserError
from embodied_rl.sim.envpool import throughput
from embodied_rl.sim.envpool.tasks import load_tasks
from embodied_rl.sim.envpool.throughput import EnvPoolStream
from embodied_rl.sim.envpool.vec_env import EnvPoolFactory
from embodied_rl.sim.wrappers.subprocess_env import ProcessVecEnv
from embodied_rl.types import EpisodeSpec
from embodied_rl.vec_env import VecEnv
from tests.sim.contract import (
    EnvIdContract,
    VecEnvContract,
    check_result,
    draw,
    end,
    run,
    same_observations,
    same_results,
)
from tests.sim.optional import needs

pytestmark = needs("envpool")
TASK = "metaworld/reach-v3"


def stream(num_envs: int, seed: int = 0) -> EnvPoolStream:
    return EnvPoolStream(load_tasks("metaworld", ["reach-v3"])[0], num_envs, seed=seed)


def specs(count: int) -> list[EpisodeSpec]:
    return [EpisodeSpec(i, TASK, i, i) for i in range(count)]


class TestContract(VecEnvContract, EnvIdContract):
    """All of it but for what an EpisodeSpec decides."""

    tasks = (TASK,)

    def make(self, num_envs: int) -> VecEnv:
        return stream(num_envs)

    def test_what_happens_does_not_depend_on_the_env_id(self, env: VecEnv) -> None:
        """It does."""
        env.reset([0, 1], [self.specs(1)[0]] * 2)
        assert not torch.equal(*(state_of(env, env_id) for env_id in (0, 1)))

    def test_a_chunk_is_its_steps(self, env: VecEnv) -> None:
        """Told of the first episodes of the same env of two pools, as no other episodes are equal."""
        actions = draw(env.info, 1)
        env.reset([0], self.specs(1))
        whole = env.step([0], actions)
        with closing(self.make(3)) as other:
            other.reset([0], self.specs(1))
            steps = [other.step([0], actions[:, k : k + 1]) for k in range(actions.shape[1])]
            assert torch.equal(torch.cat([step.reward for step in steps], dim=1), whole.reward)
            assert torch.equal(state_of(other, 0), state_of(env, 0))

    def test_actions_are_clipped_to_their_bounds(self, env: VecEnv) -> None:
        far = 3 * draw(env.info, 1)
        env.reset([0], self.specs(1))
        one = run(env, [0], far)
        with closing(self.make(3)) as other:
            other.reset([0], self.specs(1))
            two = run(other, [0], far.clamp(-1, 1))
        same_results(one[0], two[0])
        same_observations(one[1], two[1])

    def test_a_reset_of_some_envs_leaves_the_others_alone(self, env: VecEnv) -> None:
        actions = draw(env.info, 1)
        ends = []
        for disturbed in (False, True):
            with closing(self.make(3)) as env:
                env.reset([0, 1], self.specs(2))
                env.step([0, 1], actions.repeat(2, 1, 1))
                if disturbed:
                    env.reset([1], self.specs(1))
                ends.append(run(env, [0], actions))
        same_results(ends[0][0], ends[1][0])
        same_observations(ends[0][1], ends[1][1])

    def test_an_ended_episode_shows_its_end_and_is_not_reset_by_itself(self, env: VecEnv) -> None:
        end(env, 0, self.specs(1)[0])
        shown = state_of(env, 0)
        with pytest.raises(ValueError, match="no running episode"):
            env.step([0], draw(env.info, 1))
        assert torch.equal(state_of(env, 0), shown)
        env.reset([0], self.specs(1))
        assert not torch.equal(state_of(env, 0), shown)
        result = env.step([0], draw(env.info, 1))
        assert int(result.steps_taken) == 4  # no step of it was the pool's own reset


def state_of(env: VecEnv, env_id: int) -> torch.Tensor:
    out = env.new_observation(1)
    env.observe([env_id], out)
    assert out.state is not None
    return out.state[0].clone()


def episode_starts(env: VecEnv, order: Sequence[int]) -> dict[tuple[int, int], torch.Tensor]:
    """The first state of episode k of env i, for resets in this order."""
    count: dict[int, int] = {}
    found = {}
    for env_id in order:
        env.reset([env_id], specs(1))
        found[env_id, count.setdefault(env_id, 0)] = state_of(env, env_id)
        count[env_id] += 1
        env.step([env_id], draw(env.info, 1, steps=2 + 3 * env_id))
    return found


def test_an_episode_is_seed_env_and_number() -> None:
    """Neither what was done before nor the order among envs matters; the seed of env i is seed + i."""
    with closing(stream(2, seed=5)) as one, closing(stream(2, seed=5)) as two, closing(stream(1, seed=6)) as three:
        first, second = episode_starts(one, [0, 1, 0, 1, 1]), episode_starts(two, [1, 1, 1, 0, 0])
        third = episode_starts(three, [0, 0])
    assert first.keys() == second.keys()
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert all(torch.equal(first[1, k], third[0, k]) for k in (0, 1))
    assert len({tuple(state.tolist()) for state in first.values()}) == len(first)


def test_the_stamp_says_what_an_episode_is() -> None:
    with closing(stream(1, seed=3)) as env:
        assert "throughput: episodes are (seed 3, env id, k)" in env.info.simulator


@pytest.mark.process
def test_what_cannot_hold_is_refused() -> None:
    both = tuple(load_tasks("metaworld", ["reach-v3", "push-v3"]))
    with pytest.raises(UserError, match="one task"):
        EnvPoolFactory(both, episodes="throughput")(1)
    with pytest.raises(UserError, match="without images"):
        EnvPoolFactory(both[:1], episodes="throughput", image_size=32)(1)
    with pytest.raises(UserError, match="one pool in one process"):  # env 0 of each would run the same episodes
        ProcessVecEnv(EnvPoolFactory(both[:1], episodes="throughput"), 2, processes=2)
    with closing(stream(1)) as env, pytest.raises(UserError, match="this pool holds"):
        env.reset([0], [EpisodeSpec(0, "metaworld/push-v3", 0, 0)])


def test_envs_of_a_call_end_at_their_own_time() -> None:
    """Rows of one call that stop at different steps, and a call of a part of the envs in another order."""
    with closing(stream(4)) as env:
        env.reset(range(4), specs(4))
        env.step([2], torch.zeros(1, 498, 4))
        result = env.step([3, 2, 0], torch.zeros(3, 5, 4))
        check_result(result, env.info, 3)
        assert result.steps_taken.tolist() == [5, 2, 5]
        assert result.truncated.tolist() == [False, True, False]


def test_a_call_that_was_cut_short_is_not_answered_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in a notebook: what env 0 was sent would come back as env 1's first state."""
    with closing(stream(2)) as env:
        env.reset([0, 1], specs(2))

        def interrupted(*_: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as pressed:
            pressed.setattr(throughput, "read_step", interrupted)
            with pytest.raises(KeyboardInterrupt):
                env.step([0, 1], torch.zeros(2, 3, 4))
        with pytest.raises(UserError, match="open the environment again"):
            env.reset([1], specs(1))
        with pytest.raises(UserError, match="open the environment again"):
            env.step([0], torch.zeros(1, 3, 4))
