"""Vector envs that ids bring themselves: the contract, what the probe finds, and where single envs stay."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array

from embodied_rl.errors import UserError
from embodied_rl.policies.preprocessing.resize import bilinear_pillow
from embodied_rl.rollout.isolation import IsolatedVecEnv
from embodied_rl.sim.gymnasium.batches import read_rows, successes
from embodied_rl.sim.gymnasium.factory import GymnasiumFactory
from embodied_rl.sim.gymnasium.spaces import ReadOptions, layout_of
from embodied_rl.sim.gymnasium.vec_env import GymnasiumVecEnv
from embodied_rl.sim.gymnasium.vector_env import VectorEntryVecEnv
from embodied_rl.sim.wrappers.fitted_images import FittedImages
from embodied_rl.types import EpisodeSpec
from embodied_rl.vec_env import VecEnv
from tests.sim.contract import (
    EnvIdContract,
    LeakContract,
    VecEnvContract,
    draw,
    end,
    run,
    same_observations,
    same_results,
)
from tests.sim.gymnasium import batched_envs
from tests.sim.gymnasium.batched_envs import HORIZON, NAMESPACE, batched

NEXT, SEEN = f"{NAMESPACE}/Next-v0", f"{NAMESPACE}/NextSeen-v0"


def opened(name: str, num_envs: int = 3) -> VecEnv:
    return GymnasiumFactory((name,))(num_envs)


def spec(name: str, state: int, seed: int = 0) -> EpisodeSpec:
    return EpisodeSpec(state, f"gymnasium/{name}", state, seed)


class TogetherContract(VecEnvContract, EnvIdContract):
    """The contract of envs that step together: two episodes run one after the other, or in the same calls."""

    name: str

    @property
    def tasks(self) -> tuple[str, ...]:  # type: ignore[override]
        return (f"gymnasium/{self.name}",)

    def make(self, num_envs: int) -> VecEnv:
        return VectorEntryVecEnv(self.name, num_envs)

    def test_a_chunk_is_its_steps(self, env: VecEnv) -> None:
        one, actions = self.specs(1)[0], draw(env.info, 1)
        env.reset([0], [one])
        whole, seen = run(env, [0], actions)
        env.reset([1], [one])
        steps = [env.step([1], actions[:, k : k + 1]) for k in range(int(whole.steps_taken[0]))]
        assert torch.equal(torch.cat([step.reward for step in steps], dim=1), whole.reward[:, : len(steps)])
        assert torch.equal(torch.stack([step.success for step in steps]).any(dim=0), whole.success)
        for name in ("terminated", "truncated", "failed"):
            assert torch.equal(getattr(steps[-1], name), getattr(whole, name))
        out = env.new_observation(1)
        env.observe([1], out)
        same_observations(seen, out)

    def test_a_reset_of_some_envs_leaves_the_others_alone(self, env: VecEnv) -> None:
        actions = draw(env.info, 2)
        ends = []
        for disturbed in (False, True):
            end(env, 0, self.specs(1)[0])
            env.reset([0, 1], self.specs(2))
            env.step([0, 1], actions[:, :1])
            if disturbed:
                env.reset([1], self.specs(3)[2:])
            ends.append(run(env, [0, 1], actions[:, 1:3]))
        for (result, seen), (other, observed) in (ends,):
            assert torch.equal(result.reward[0], other.reward[0])
            assert not torch.equal(result.reward[1], other.reward[1])
            same_observations(seen.rows([0]), observed.rows([0]))

    def test_actions_are_clipped_to_their_bounds(self, env: VecEnv) -> None:
        one, info = self.specs(1)[0], env.info
        far = 3 * draw(info, 1)
        near = far.clamp(torch.tensor(info.action_low), torch.tensor(info.action_high))
        env.reset([0, 1], [one, one])
        result, seen = run(env, [0, 1], torch.cat([far, near]))
        assert torch.equal(result.reward[0], result.reward[1])
        same_observations(seen.rows([0]), seen.rows([1]))


class TestNextStep(TogetherContract, LeakContract):
    name = SEEN


class TestSameStep(TogetherContract):
    name = f"{NAMESPACE}/SameSeen-v0"


class TestDisabled(TogetherContract):
    name = f"{NAMESPACE}/DisabledSeen-v0"


class TestTensors(TogetherContract):
    name = batched("Tensors", tensors=True, images=True)


class TestFitted(TogetherContract):
    name = SEEN

    def make(self, num_envs: int) -> VecEnv:
        return FittedImages(super().make(num_envs), image_size=16, cameras=1, resize=bilinear_pillow)


@pytest.mark.parametrize("mode", ["Next", "Same", "Disabled"])
@pytest.mark.parametrize("images", ["", "Seen"])
def test_episodes_are_those_of_single_envs_bit_for_bit(mode: str, images: str) -> None:
    name = f"{NAMESPACE}/{mode}{images}-v0"
    with closing(opened(name, 4)) as own, closing(GymnasiumVecEnv([name], 4)) as single:
        assert isinstance(own, VectorEntryVecEnv)
        assert own.info.simulator.endswith(", Many")
        assert own.info.steps_together
        for what in ("reads", "has_success", "repeatable", "instructed", "max_episode_steps", "action_low"):
            assert getattr(own.info, what) == getattr(single.info, what)
        words = set()
        ids, running = [0, 1, 3], {0, 1, 3}
        for env in (own, single):
            env.reset(ids, [spec(name, state) for state in range(3)])
        for turn in range(12):  # rows end, and are refilled beside others that run
            rows = sorted(running)
            actions = draw(own.info, len(rows), 3, seed=turn)
            (one, seen), (two, observed) = run(own, rows, actions), run(single, rows, actions)
            same_results(one, two)
            same_observations(seen, observed)
            words |= set(seen.instruction)
            running -= {row for row, over in zip(rows, one.terminated | one.truncated, strict=True) if over}
            fresh = sorted({0, 1, 3} - running) if turn % 2 else []
            for env in (own, single):
                env.reset(fresh, [spec(name, 10 * turn + row) for row in fresh])
            running |= set(fresh)
        assert words == set(batched_envs.TASK)


def test_an_id_may_have_a_vector_env_only() -> None:
    name = batched("Alone", single=False, images=True, noise=True)
    for count in (1, 3):
        with closing(opened(name, count)) as env:
            assert isinstance(env, VectorEntryVecEnv)
            assert env.info.has_success
            assert env.info.instructed
            env.reset([0], [spec(name, 5, seed=1)])
            first = run(env, [0], draw(env.info, 1))
            env.reset([count - 1], [spec(name, 5, seed=2)])
            again = run(env, [count - 1], draw(env.info, 1))
            same_results(first[0], again[0])


FAULTS = {
    "one stream": "the episode of initial state 0 is not that of the single env",
    "whole": "the episode of initial state 0 is not that of the single env",
    "pending": "the episode of initial state 1 is not that of the single env",
    "row": "the episode of initial state 0 is not that of the single env",
    "raises": "RuntimeError: the kernel failed",
    "flat": "its instructed is False, the single env's True",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_vector_env_that_breaks_the_contract_is_found_and_single_envs_run(fault: str) -> None:
    with closing(opened(batched(fault.title().replace(" ", ""), fault=fault))) as env:
        assert isinstance(env, GymnasiumVecEnv)
        assert not env.info.steps_together
        assert env.info.reads == (f"single envs: its own vector env can't be used ({FAULTS[fault]})",)
    if fault == "flat":  # by itself that is no fault
        return
    name = batched(f"Only{fault.title().replace(' ', '')}", single=False, fault=fault)
    words = FAULTS[fault].replace("that of the single env", "the same in every row")
    with pytest.raises(UserError, match=f"{name} has a vector env only, which can't be used: {words}"):
        opened(name)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"noise": True}, "is not that of the single env"),  # its steps draw from the seed of the initial state
        ({"flag": False}, "its info says of success, unlike that of the single env"),
        ({"fault": "unmade"}, "can't be made: it raises RuntimeError: there is no such device"),
    ],
)
def test_one_that_differs_from_the_single_env_stands_aside(options: dict[str, Any], words: str) -> None:
    with closing(opened(batched("Differs" + "".join(options).title(), **options))) as env:
        assert isinstance(env, GymnasiumVecEnv)
        assert words in env.info.reads[-1]


def test_gymnasiums_own_cart_pole_is_refused_as_its_rows_share_a_seed() -> None:
    with closing(opened("CartPole-v1")) as env:
        assert isinstance(env, GymnasiumVecEnv)
        assert "can't be reset by a seed for each row: Seed must be a python integer" in env.info.reads[-1]


def test_single_envs_run_where_some_are_stepped_apart() -> None:
    both = GymnasiumFactory((NEXT, f"{NAMESPACE}/Same-v0"))(2)
    for env in (GymnasiumFactory((NEXT,), apart=True)(2), both, opened(NEXT, 1)):
        assert isinstance(env, GymnasiumVecEnv)
        assert env.info.reads == ()
        env.close()
    with pytest.raises(UserError, match=r"has a vector env only.*leave --env.processes out.*--scheduler.env-groups 1"):
        GymnasiumFactory((batched("Alone", single=False, images=True, noise=True),), apart=True)(2)


def test_a_row_that_breaks_fails_alone_and_shows_its_last_sound_state(caplog: pytest.LogCaptureFixture) -> None:
    name = batched("Sick", fault="NaN")
    with closing(VectorEntryVecEnv(name, 2)) as env:
        env.reset([0], [spec(name, 0)])
        env.step([0], torch.zeros(1, 2, 2))
        env.reset([1], [spec(name, 1)])
        result, seen = run(env, [0, 1], torch.zeros(2, 2, 2))
        assert result.failed.tolist() == [True, False]
        assert result.steps_taken.tolist() == [1, 2]
        assert not (result.terminated | result.truncated).any()
        assert seen.state is not None
        assert torch.isfinite(seen.state).all()
        assert "broke in envs [0]" in caplog.text
        with pytest.raises(ValueError, match="holds no running episode"):
            env.step([0], torch.zeros(1, 1, 2))


def test_one_that_raises_is_opened_anew() -> None:
    name = batched("Crashes", fault="raises")
    with closing(IsolatedVecEnv(VectorEntryVecEnv(name, 2))) as env:
        for _ in range(2):
            env.reset([0, 1], [spec(name, 0), spec(name, 1)])
            assert not env.step([0, 1], torch.zeros(2, 2, 2)).failed.any()
            assert env.step([0, 1], torch.zeros(2, 1, 2)).failed.all()


def test_a_running_episode_that_is_not_named_is_given_up() -> None:
    with closing(opened(NEXT)) as env:
        env.reset([0, 1, 2], [spec(NEXT, state) for state in range(3)])
        env.step([0, 2], torch.zeros(2, 1, 2))
        with pytest.raises(ValueError, match="a step that did not name it gave it up"):
            env.step([0, 1, 2], torch.zeros(3, 1, 2))
        env.reset([1], [spec(NEXT, 1)])
        assert env.step([0, 1, 2], torch.zeros(3, HORIZON, 2)).steps_taken.tolist() == [
            HORIZON - 1,
            HORIZON,
            HORIZON - 1,
        ]


def test_rows_are_read_as_single_observations_are() -> None:
    space = spaces.Dict(
        {
            "image": spaces.Box(0.0, 1.0, (3, 16, 20), np.float32),
            "state": spaces.Box(-1, 1, (2,), np.float64),
            "pair": spaces.Tuple((spaces.Discrete(3, start=-1), spaces.MultiDiscrete(np.array([[2, 3], [4, 2]])))),
            "bits": spaces.MultiBinary((2, 2)),
        }
    )
    space.seed(0)
    layout, samples = layout_of(space), [space.sample() for _ in range(5)]
    batch: Any = concatenate(space, samples, create_empty_array(space, 5))
    rows = np.array([3, 0])
    seen, sound = read_rows(layout, batch_space(space, 5), batch, rows)
    assert sound.all()
    for row, index in enumerate(rows):
        one = layout.read(samples[index])
        for what in ("images", "proprio", "state"):
            assert np.array_equal(getattr(seen, what)[row], getattr(one, what)), what
    batch["image"][3] = 2.0
    batch["state"][0, 1] = np.inf
    assert read_rows(layout, batch_space(space, 5), batch, np.arange(5))[1].tolist() == [False, True, True, False, True]
    with pytest.raises(ValueError, match=r"the batch of observations\['state'\] is float64 \[5, 3\]"):
        read_rows(layout, batch_space(space, 5), {**batch, "state": np.zeros((5, 3))}, rows)


@pytest.mark.parametrize(
    ("infos", "expected"),
    [
        ({"success": np.array([1.0, 0.0, 1.0])}, ([1, 0, 1], [1, 1, 1], [1, 1, 1])),
        ({"success": torch.tensor([True, False, False])}, ([1, 0, 0], [1, 1, 1], [1, 1, 1])),
        (
            {"is_success": np.array([True, True, False]), "_is_success": np.array([True, False, False])},
            ([1, 0, 0], [1, 0, 0], [1, 1, 1]),
        ),
        (
            {"is_success": np.array([None, True, 0.5], object), "success": np.array([1, 0, 1])},
            ([1, 1, 0], [1, 1, 1], [1, 1, 0]),
        ),
        ({"success": np.array(["True", "False", "1"])}, ([0, 0, 0], [1, 1, 1], [0, 0, 0])),
        ({}, ([0, 0, 0], [0, 0, 0], [1, 1, 1])),
    ],
)
def test_success_is_read_by_row(infos: dict[str, Any], expected: tuple[list[int], ...]) -> None:
    assert tuple(part.tolist() for part in successes(infos, np.arange(3))) == expected


def test_cameras_and_units_are_chosen_as_of_single_envs() -> None:
    env = GymnasiumFactory((SEEN,), ReadOptions(instruction="Go", control_hz=7, own_units=True))(2)
    with closing(env):
        assert isinstance(env, VectorEntryVecEnv)
        assert (env.info.control_hz, env.info.action_high) == (7, (2.0, 2.0))
        env.reset([1], [spec(SEEN, 0)])
        out = env.new_observation(1)
        env.observe([1], out)
        assert out.instruction == ["Go"]
        assert env.frame(1, "pixels", 8).shape == (8, 8, 3)


def test_an_episode_is_drawn_as_long_as_its_row_shows_it() -> None:
    with closing(opened(NEXT, 2)) as env, closing(opened(f"{NAMESPACE}/Same-v0", 2)) as other:
        assert isinstance(env, VectorEntryVecEnv)
        env.reset([0], [spec(NEXT, 0)])
        shown = []
        for _ in range(HORIZON):
            shown.append(env.frame(0, "", 8))
            result = env.step([0], torch.full((1, 1, 2), 0.1))
        assert result.truncated.all()
        assert not np.array_equal(shown[0], env.frame(0, "", 8)), "its end"
        env.reset([1], [spec(NEXT, 1)])
        env.step([1], torch.zeros(1, 1, 2))
        with pytest.raises(NotImplementedError, match="draws no pictures of the end"):
            env.frame(0, "", 8)
        other.reset([0], [spec(f"{NAMESPACE}/Same-v0", 0)])
        with pytest.raises(NotImplementedError, match="draws no pictures of the end"):
            other.frame(0, "", 8)
