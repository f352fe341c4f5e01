"""gymnasium environments that misbehave: what is a failed episode, what is a flag, what repeats, what is a picture."""

from __future__ import annotations

import logging
from contextlib import closing
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from embodied_rl.errors import UserError
from embodied_rl.sim.gymnasium.spaces import layout_of
from embodied_rl.sim.gymnasium.vec_env import GymnasiumVecEnv
from embodied_rl.types import EpisodeSpec
from embodied_rl.vec_env import SimulatorFailed
from tests.sim.gymnasium import faulty_envs
from tests.sim.gymnasium.faulty_envs import HORIZON, SOME, walk

MANY = 60


def run(env: GymnasiumVecEnv, name: str, state: int) -> tuple[list[bool], bool]:
    """Step an episode one by one: which step failed; and whether it could be seen before its first."""
    env.reset([0], [EpisodeSpec(0, f"gymnasium/{name}", state, state)])
    seen = env.observe([0], env.new_observation(1)) is None
    failed: list[bool] = []
    while True:
        result = env.step([0], torch.zeros(1, 1, 1))
        failed.append(bool(result.failed))
        if result.failed or result.terminated or result.truncated:
            return failed, seen


@pytest.mark.parametrize(
    ("fault", "step"),
    [
        ("reset raises", 0),
        ("reset has another shape", 0),
        ("raises", 2),
        ("is NaN", 2),
        ("has another shape", 2),
        ("flag NaN", 0),
        ("flag half", 0),
        ("flag text", 0),
        ("end None", 0),
        ("end NaN", 0),
        ("end text", 0),
        ("end two", 0),
    ],
)
def test_what_breaks_in_some_states_fails_their_episodes_and_no_others(
    fault: str, step: int, caplog: pytest.LogCaptureFixture
) -> None:
    name = walk(fault, SOME)
    with closing(GymnasiumVecEnv([walk("")], 1)) as sound:
        starts = []
        for state in range(MANY):
            sound.reset([0], [EpisodeSpec(0, f"gymnasium/{walk('')}", state, 0)])
            obs = sound.new_observation(1)
            sound.observe([0], obs)
            assert obs.state is not None
            starts.append(float(obs.state[0, 0]))
    with closing(GymnasiumVecEnv([name], 1)) as env, caplog.at_level(logging.WARNING, "embodied_rl.gymnasium"):
        assert env.info.has_success
        for state, start in enumerate(starts):
            failed, seen = run(env, name, state)
            breaks = start > SOME
            assert failed == ([False] * step + [True] if breaks else [False] * HORIZON)
            assert seen == (not breaks or not fault.startswith("reset"))
    assert 2 <= sum(start > SOME for start in starts) <= MANY // 6
    (said,) = [record.message for record in caplog.records]
    assert said.startswith(f"{name} broke (")
    assert "\n" not in said


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("reset raises", "the scene could not be built"),
        ("old API", r"not enough values to unpack \(expected 5, got 4\)"),
        ("flag NaN", r"info\['success'\] is nan, and only 0 and 1 say whether it holds"),
        ("reset has another shape", r"the observation is float32 \[3\], and \[2\] is declared"),
    ],
)
def test_what_always_breaks_is_refused_in_one_line_that_says_why(fault: str, words: str) -> None:
    with pytest.raises(
        UserError, match=f"{walk(fault)}: it breaks from each of 8 initial states: [A-Z][A-Za-z]+Error: {words}"
    ) as error:
        GymnasiumVecEnv([walk(fault)], 1)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("drawn", "words"),
    [
        (RuntimeError("no context"), "no context"),
        (None, r"no picture \[H, W, 3\], but object \[\]"),
        (np.zeros((8, 8), np.uint8), r"no picture \[H, W, 3\], but uint8 \[8, 8\]"),
        ([np.zeros((8, 8, 3), np.uint8)], r"no picture \[H, W, 3\], but uint8 \[1, 8, 8, 3\]"),
    ],
)
def test_a_frame_of_what_broke_is_a_failure_and_no_traceback(drawn: Any, words: str) -> None:
    class Drawn(faulty_envs.Walk):
        metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
        render_mode = "rgb_array"

        def __init__(self, render_mode: str = "rgb_array") -> None:
            super().__init__()

        def render(self) -> Any:
            if isinstance(drawn, Exception):
                raise drawn
            return drawn

    name = faulty_envs.make_id(f"Drawn{len(words)}", Drawn)
    with closing(GymnasiumVecEnv([name], 1)) as env:
        env.reset([0], [EpisodeSpec(0, f"gymnasium/{name}", 0, 0)])
        with pytest.raises(SimulatorFailed, match=f"broke while it was drawn: {words}"):
            env.frame(0, "", 8)


def test_an_env_that_does_not_close_is_named_and_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    class Open(faulty_envs.Walk):
        def close(self) -> None:
            raise RuntimeError("its window is gone")

    name = faulty_envs.make_id("Open", Open)
    with closing(GymnasiumVecEnv([name], 1)) as env:
        assert run(env, name, 0) == ([False] * HORIZON, True)
    assert all("did not close: RuntimeError: its window is gone" in record.message for record in caplog.records)
    assert len(caplog.records) == 4  # one that was asked for its spaces, two that were probed, one that ran


@pytest.mark.parametrize("rate", [0, -5, float("nan"), float("inf"), "fast", None])
def test_a_control_rate_that_can_be_none_is_the_usual_one(rate: Any) -> None:
    class Timed(faulty_envs.Walk):
        metadata = {"render_modes": [], "render_fps": rate}  # noqa: RUF012

    with closing(GymnasiumVecEnv([faulty_envs.make_id(f"Timed{str(rate).strip('-')}", Timed)], 1)) as env:
        assert env.info.control_hz == 30.0


@pytest.mark.parametrize(("fault", "has"), [("only the last flag", True), ("no flag", False), ("", True)])
def test_a_flag_counts_whenever_it_comes(fault: str, has: bool) -> None:
    name = walk(fault)
    with closing(GymnasiumVecEnv([name], 1)) as env:
        assert env.info.has_success is has
        won = []
        for state in range(8):
            env.reset([0], [EpisodeSpec(0, f"gymnasium/{name}", state, state)])
            won.append(bool(env.step([0], torch.ones(1, HORIZON, 1)).success))
        assert any(won) is has


def test_the_last_sound_observation_outlives_a_buffer_that_is_used_again() -> None:
    name = walk("is NaN reused")
    with closing(GymnasiumVecEnv([name], 1)) as env:
        env.reset([0], [EpisodeSpec(0, f"gymnasium/{name}", 0, 0)])
        before = env.new_observation(1)
        assert env.step([0], torch.zeros(1, 2, 1)).failed.tolist() == [False]
        env.observe([0], before)
        assert env.step([0], torch.zeros(1, 1, 1)).failed.tolist() == [True]
        after = env.new_observation(1)
        env.observe([0], after)
        assert before.state is not None
        assert after.state is not None
        assert torch.equal(after.state, before.state)
        assert after.state[0, 1] == 2


def test_a_task_that_ignores_its_seed_says_that_it_does_not_repeat() -> None:
    for fault, repeats in (("unseeded", False), ("", True), ("is NaN", True)):
        with closing(GymnasiumVecEnv([walk(fault)], 1)) as env:
            assert env.info.repeatable is repeats
    with closing(GymnasiumVecEnv(["Pendulum-v1"], 1)) as env:
        assert env.info.repeatable


def test_a_seed_that_is_ignored_in_some_states_only_is_noticed() -> None:
    class Sometimes(faulty_envs.Walk):
        def reset(self, **options: Any) -> Any:
            _, info = super().reset(**options)
            if self._start > 0.3:
                self._place = float(self._own.uniform())
            return self._seen(), info

    with closing(GymnasiumVecEnv([faulty_envs.make_id("Sometimes", Sometimes)], 1)) as env:
        assert not env.info.repeatable


def test_a_generator_that_each_env_draws_once_is_noticed_as_well() -> None:
    """Resets of one env repeat, those of another env do not."""

    class Bent(faulty_envs.Walk):
        def __init__(self) -> None:
            super().__init__()
            self._gravity = np.random.default_rng().normal()

        def _seen(self) -> Any:
            return super()._seen() + np.float32(self._gravity)

    class Counting(faulty_envs.Walk):
        """Every reset differs from the one before, but two in a row from a fresh env would not tell."""

        resets = 0

        def reset(self, **options: Any) -> Any:
            self.resets += 1
            return super().reset(**options)

        def _seen(self) -> Any:
            return super()._seen() + np.float32(self.resets > 2)

    for name, entry in (("Bent", Bent), ("Counting", Counting)):
        with closing(GymnasiumVecEnv([faulty_envs.make_id(name, entry)], 1)) as env:
            assert not env.info.repeatable


WIDE = spaces.Box(-1.0, 1.0, (32, 24, 3), np.float32)
FIRST = spaces.Box(0, 255, (3, 32, 24), np.uint8)
PIXELS = spaces.Box(0, 255, (32, 24, 3), np.uint8)
NUMBERS = spaces.Box(-1.0, 1.0, (4,), np.float32)


@pytest.mark.parametrize(
    ("space", "words"),
    [
        (WIDE, r"^observation looks like an image \(float32 \[32, 24, 3\]\)"),
        (spaces.Dict({"depth": spaces.Box(0, 9, (32, 24), np.float32), "agent": NUMBERS}), r"\['depth'\] looks like"),
        (spaces.Box(0, 255, (84, 84), np.uint8), "looks like an image"),
        (spaces.Box(0, 255, (84, 84, 1), np.uint8), "looks like an image"),
        (spaces.Box(0, 255, (84, 84, 12), np.uint8), "looks like an image"),
        (spaces.Box(0, 255, (4, 84, 84, 3), np.uint8), "looks like an image"),
        (spaces.Box(0, 255, (84 * 84 * 3,), np.uint8), "looks like an image"),
        (spaces.Box(0, 255, (84, 84, 3), np.float64), "looks like an image"),
        (spaces.Box(0, 1, (84, 84), np.float32), "looks like an image"),
        (spaces.Box(-np.inf, np.inf, (84, 84, 3), np.float32), "looks like an image"),
        (spaces.Box(-3, 3, (3, 64, 64), np.float32), "looks like an image"),
        (spaces.Dict({"agent": NUMBERS, "front": WIDE}), r"^observation\['front'\] looks like an image"),
        (spaces.Dict({"pixels": spaces.Dict({"front": WIDE})}), r"^observation\['pixels'\]\['front'\] looks like"),
        (spaces.Tuple((NUMBERS, PIXELS)), r"^observation\[1\] looks like an image"),
        (spaces.Dict({"a": PIXELS, "b": spaces.Box(0, 255, (8, 8, 3), np.uint8)}), "several sizes .a 32x24, b 8x8"),
        (spaces.Dict({"task": spaces.Text(20), "agent": NUMBERS}), r"^observation\['task'\] is Text"),
        (spaces.Text(20), "^observation is Text"),
        (spaces.Dict({"seen": spaces.Sequence(NUMBERS)}), r"^observation\['seen'\] is Sequence"),
        (spaces.Dict({"net": spaces.Graph(NUMBERS, None)}), r"^observation\['net'\] is Graph"),
        (spaces.Tuple((spaces.OneOf((NUMBERS, FIRST)),)), r"^observation\[0\] is OneOf"),
    ],
)
def test_pictures_of_another_form_and_spaces_without_numbers_are_refused_by_name(
    space: spaces.Space[Any], words: str
) -> None:
    with pytest.raises(UserError, match=words) as error:
        layout_of(space)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("space", "cameras", "numbers"),
    [
        (PIXELS, 1, 0),
        (spaces.Dict({"front": PIXELS, "wrist": PIXELS, "agent": NUMBERS}), 2, 4),
        (spaces.Box(-np.inf, np.inf, (32, 32, 3)), 0, 32 * 32 * 3),
        (spaces.Box(-1, 1, (30, 40)), 0, 1200),
        (spaces.Box(0, 1, (16, 40)), 0, 640),
        (spaces.Box(-np.inf, np.inf, (64, 64)), 0, 64 * 64),
        (spaces.Box(0, 255, (128,), np.uint8), 0, 128),
        (spaces.Tuple((NUMBERS, spaces.Discrete(3), spaces.MultiBinary(4), spaces.MultiDiscrete([2, 3]))), 0, 16),
        (spaces.Dict({"agent": spaces.Dict({"arm": NUMBERS})}), 0, 4),
    ],
)
def test_what_is_read_is_read_as_before(space: spaces.Space[Any], cameras: int, numbers: int) -> None:
    name = faulty_envs.make_id(f"Constant{abs(hash(str(space)))}", faulty_envs.Constant, space=space)
    with closing(GymnasiumVecEnv([name], 1)) as env:
        assert (len(env.info.cameras), env.info.state_dim) == (cameras, numbers)
        env.reset([0], [EpisodeSpec(0, f"gymnasium/{name}", 0, 0)])
        obs = env.new_observation(1)
        assert env.observe([0], obs) is None
        space.seed(0)
        sample = space.sample()
        if cameras == 1:
            assert np.array_equal(obs.images[0, 0].numpy(), sample)
        elif cameras == 2:
            assert np.array_equal(obs.images[0].numpy(), [sample["front"], sample["wrist"]])
        else:
            assert obs.state is not None
            assert np.array_equal(obs.state[0].numpy(), np.asarray(spaces.flatten(space, sample), np.float32))
