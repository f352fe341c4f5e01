"""What of an environment's observation is read as what: images in any of the field's forms, proprio, instruction."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from embodied_rl.errors import UserError
from embodied_rl.policies.preprocessing.resize import bilinear_pillow, bilinear_pillow_padded
from embodied_rl.sim.gymnasium.actions import action_map, drawn
from embodied_rl.sim.gymnasium.spaces import ReadOptions, layout_of
from embodied_rl.sim.gymnasium.vec_env import GymnasiumVecEnv
from embodied_rl.sim.wrappers.fitted_images import FittedImages
from embodied_rl.types import Array, EpisodeSpec
from embodied_rl.vec_env import VecEnv
from tests.sim.contract import VecEnvContract
from tests.sim.gymnasium import faulty_envs

PACKAGES = Path(__file__).parents[2] / "packages"
ARMS = "gym_two_arms/Reach-v0"
PIXELS = spaces.Box(0, 255, (24, 32, 3), np.uint8)
JOINTS = spaces.Box(-3.0, 3.0, (14,), np.float32)
LEROBOT = spaces.Dict({"pixels": spaces.Dict({"top": PIXELS, "wrist": PIXELS}), "agent_pos": JOINTS})


@pytest.fixture(autouse=True)
def packages(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The environment's package can be imported, as if it were installed; its ids are unknown until then."""
    monkeypatch.syspath_prepend(str(PACKAGES / "gym_two_arms"))
    yield
    gymnasium.registry.pop(ARMS, None)
    sys.modules.pop("gym_two_arms", None)


class TestLeRobotForm(VecEnvContract):
    tasks = (f"gymnasium/{ARMS}",)

    def make(self, num_envs: int) -> VecEnv:
        return GymnasiumVecEnv([ARMS], num_envs)


class TestFittedImages(VecEnvContract):
    tasks = (f"gymnasium/{ARMS}",)

    def make(self, num_envs: int) -> VecEnv:
        env = GymnasiumVecEnv([ARMS], num_envs)
        return FittedImages(env, image_size=64, cameras=1, resize=bilinear_pillow)


def test_an_id_in_the_form_of_lerobot_is_read_whole() -> None:
    with closing(GymnasiumVecEnv([ARMS], 1)) as env:
        info = env.info
        assert (info.cameras, info.image_shape) == (("top",), (96, 96))
        assert (info.proprio_dim, info.state_dim, info.action_dim) == (14, 0, 14)
        assert (info.control_hz, info.instructed, info.has_success) == (50, True, True)
        assert info.reads == (
            "camera top: observation['pixels']['top'], 96x96",
            "proprio: observation['agent_pos'], 14 numbers",
            "rate: 50 Hz, metadata['render_fps']",
            "instruction: the environment's, first 'Move both hands to the marks'",
        )
        env.reset([0], [EpisodeSpec(0, f"gymnasium/{ARMS}", 3, 1)])
        obs = env.new_observation(1)
        env.observe([0], obs)
        assert obs.instruction == ["Move both hands to the marks"]
        assert np.array_equal(env.frame(0, "top", 96), obs.images[0, 0].numpy())


def test_actions_may_be_in_the_environments_own_units() -> None:
    with closing(GymnasiumVecEnv([ARMS], 1, ReadOptions(own_units=True))) as env:
        assert env.info.action_high == pytest.approx((*[3.14] * 6, 1.0) * 2)
        assert env.info.action_low == pytest.approx((*[-3.14] * 6, 0.0) * 2)
        env.reset([0], [EpisodeSpec(0, f"gymnasium/{ARMS}", 3, 1)])
        target = torch.full((1, 1, 14), 0.25)
        env.step([0], target)
        obs = env.new_observation(1)
        env.observe([0], obs)
        assert torch.equal(obs.proprio, target[:, 0])
    box = spaces.Box(np.array([0, -np.inf], np.float32), np.array([4, np.inf], np.float32))
    own = action_map(box, "Mine-v0", own_units=True)
    assert (own.low, own.high) == ((0, -np.inf), (4, np.inf))
    assert own.convert(np.array([5, 2.8], np.float32)).tolist() == [4, pytest.approx(2.8)]
    assert action_map(box, "Mine-v0").convert(np.array([1, 1], np.float32)).tolist() == [4, 1]


def test_a_random_action_without_bounds_is_small() -> None:
    actions = [drawn(np.random.default_rng(seed), (0, -np.inf), (4, np.inf)) for seed in range(50)]
    assert (np.min(actions, axis=0) >= (0, -1)).all()
    assert (np.max(actions, axis=0) <= (4, 1)).all()
    assert np.std(actions, axis=0).min() > 0.3


@pytest.mark.parametrize("kind", ["depth", "segmentation", "masks"])
def test_what_lies_under_a_key_of_another_kind_is_no_camera(kind: str) -> None:
    layout = layout_of(spaces.Dict({"rgb": spaces.Dict({"front": PIXELS}), kind: spaces.Dict({"front": PIXELS})}))
    assert [image.path for image in layout.images] == [("rgb", "front")]
    assert layout.left_out == ((kind, "front"),)
    named_so = spaces.Dict({"depth_camera": spaces.Dict({"rgb": PIXELS, "depth": PIXELS})})
    assert [image.path for image in layout_of(named_so).images] == [("depth_camera", "rgb")]


@pytest.mark.parametrize("shape", [(48, 48, 1), (1, 48, 48)])
def test_a_depth_image_without_bounds_is_no_state(shape: tuple[int, ...]) -> None:
    distance = spaces.Box(0, np.inf, shape, np.float32)
    layout = layout_of(spaces.Dict({"pixels": PIXELS, "distance": distance, "agent_pos": JOINTS}))
    assert (layout.state_dim, layout.left_out) == (0, (("distance",),))
    with pytest.raises(UserError, match="looks like an image"):
        layout_of(spaces.Dict({"distance": distance, "joints": JOINTS}))


def test_an_image_is_no_proprio() -> None:
    with pytest.raises(UserError, match=r"--env.proprio pixels.*is an image"):
        layout_of(spaces.Dict({"pixels": PIXELS, "agent_pos": JOINTS}), ReadOptions(proprio=("pixels",)))


def sample(space: spaces.Space[Any]) -> Any:
    space.seed(0)
    return space.sample()


@pytest.mark.parametrize(
    ("space", "key"),
    [
        (spaces.Box(0, 255, (3, 24, 32), np.uint8), "first"),
        (spaces.Box(0.0, 1.0, (24, 32, 3), np.float32), "unit"),
        (spaces.Box(0.0, 1.0, (3, 24, 32), np.float64), "both"),
    ],
)
def test_axes_and_numbers_of_an_image_may_be_any_of_the_usual(space: spaces.Box, key: str) -> None:
    layout = layout_of(spaces.Dict({"image": space, "state": JOINTS}))
    seen = sample(layout.space)
    read = layout.read(seen).images[0]
    image = seen["image"] if space.dtype == np.uint8 else np.round(255 * seen["image"].astype(np.float64))
    image = image.transpose(1, 2, 0) if space.shape[0] == 3 else image
    assert (layout.image_shape, read.dtype) == ((24, 32), np.uint8), key
    assert np.abs(read.astype(int) - image.astype(int)).max() <= (0 if space.dtype == np.uint8 else 1)


@pytest.mark.parametrize(
    ("space", "cameras", "proprio"),
    [
        (LEROBOT, ("top", "wrist"), "agent_pos"),
        (spaces.Dict({"pixels": PIXELS, "agent_pos": JOINTS}), ("pixels",), "agent_pos"),
        (spaces.Dict({"observation.images.top": PIXELS, "observation.state": JOINTS}), ("top",), "observation.state"),
        (
            spaces.Dict({"observation": spaces.Dict({"image": spaces.Dict({"base": PIXELS}), "state": JOINTS})}),
            ("base",),
            "observation.state",
        ),
        (spaces.Dict({"images": spaces.Dict({"a": PIXELS}), "image": spaces.Dict({"a": PIXELS})}), None, None),
    ],
)
def test_the_fields_keys_are_known(space: spaces.Dict, cameras: tuple[str, ...] | None, proprio: str | None) -> None:
    layout = layout_of(space)
    assert layout.cameras == (cameras or ("image.a", "images.a"))
    if proprio:
        assert [".".join(path) for path in layout.proprio] == [proprio]
        assert (layout.proprio_dim, layout.state_dim) == (14, 0)


def test_other_numbers_are_the_state_and_depth_is_not_read() -> None:
    depth, mask = spaces.Box(0, 9, (24, 32, 1), np.float32), spaces.Box(0, 255, (24, 32, 3), np.uint8)
    parts = {**LEROBOT.spaces, "environment_state": spaces.Box(-1, 1, (6,), np.float32), "depth": depth}
    layout = layout_of(spaces.Dict({**parts, "segmentation_mask": mask}))
    assert (layout.cameras, layout.proprio_dim, layout.state_dim) == (("top", "wrist"), 14, 6)
    assert layout.left_out == (("depth",), ("segmentation_mask",))
    seen = sample(layout.space)
    read = layout.read(seen)
    assert np.array_equal(read.state, seen["environment_state"])
    assert np.array_equal(read.proprio, seen["agent_pos"])


def test_cameras_and_proprio_are_chosen_in_order() -> None:
    parts = {**LEROBOT.spaces, "velocity": spaces.Box(-9, 9, (2,), np.float32)}
    options = ReadOptions(cameras=("wrist", "pixels.top"), proprio=("velocity", "agent_pos"))
    layout = layout_of(spaces.Dict(parts), options)
    seen = sample(layout.space)
    read = layout.read(seen)
    assert layout.cameras == ("wrist", "top")
    assert np.array_equal(read.images, [seen["pixels"]["wrist"], seen["pixels"]["top"]])
    assert np.array_equal(read.proprio, np.concatenate([seen["velocity"], seen["agent_pos"]]))
    one = layout_of(spaces.Dict(parts), ReadOptions(cameras=("wrist",)))
    assert (one.cameras, one.left_out, one.state_dim) == (("wrist",), (("pixels", "top"),), 2)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (ReadOptions(cameras=("wrists",)), "--env.cameras wrists: .* it has top, wrist. Did you mean 'wrist'"),
        (ReadOptions(cameras=("top", "top")), "camera 'top' is named twice"),
        (ReadOptions(proprio=("agent",)), "--env.proprio agent: .* Did you mean 'agent_pos'"),
        (ReadOptions(proprio=("pixels",)), "--env.proprio pixels: the observation has no such part"),
    ],
)
def test_what_is_not_there_is_refused_by_name(options: ReadOptions, words: str) -> None:
    with pytest.raises(UserError, match=words):
        layout_of(LEROBOT, options)


@pytest.mark.parametrize("value", [-0.1, 1.1, np.nan])
def test_a_float_image_beyond_its_bounds_fails(value: float) -> None:
    layout = layout_of(spaces.Box(0.0, 1.0, (24, 32, 3), np.float32))
    with pytest.raises(ValueError, match="numbers 0 to 1 is declared"):
        layout.read(np.full((24, 32, 3), value, np.float32))


class Told(faulty_envs.Constant):
    """Says what is to be done where it is told to."""

    def __init__(self, info: dict[str, Any], **attributes: Any) -> None:
        super().__init__(space=LEROBOT)
        self._info = info
        for name, value in attributes.items():
            setattr(self, name, value)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        seen, info = super().reset(seed=seed, options=options)
        return seen, {**info, **self._info}


@pytest.mark.parametrize(
    ("info", "attributes", "option", "expected"),
    [
        ({"task": "open it"}, {"task_description": "no"}, None, "open it"),
        ({"instruction": "close it"}, {}, None, "close it"),
        ({"task": 3}, {"task_description": "lift it", "task": "no"}, None, "lift it"),
        ({}, {"task": "push it"}, None, "push it"),
        ({"task": "open it"}, {}, "shut it", "shut it"),
        ({}, {}, None, None),
    ],
)
def test_the_instruction_comes_from_where_the_field_puts_it(
    info: dict[str, Any], attributes: dict[str, Any], option: str | None, expected: str | None
) -> None:
    number = sum(id_.startswith(f"{faulty_envs.NAMESPACE}/Told") for id_ in gymnasium.registry)
    name = faulty_envs.make_id(f"Told{number}", lambda: Told(info, **attributes))
    with closing(GymnasiumVecEnv([name], 1, ReadOptions(instruction=option))) as env:
        assert env.info.instructed == (expected is not None)
        env.reset([0], [EpisodeSpec(0, f"gymnasium/{name}", 0, 0)])
        obs = env.new_observation(1)
        env.observe([0], obs)
        assert obs.instruction == [expected or name]


@pytest.mark.parametrize(("resize", "bars"), [(bilinear_pillow, 0), (bilinear_pillow_padded, 8)])
def test_images_are_stretched_or_padded_to_the_policys_size(resize: Any, bars: int) -> None:
    name = faulty_envs.make_id("Seen", lambda: faulty_envs.Constant(space=LEROBOT))
    whole = GymnasiumVecEnv([name], 1)
    with closing(FittedImages(whole, image_size=32, cameras=1, resize=resize)) as env:
        env.reset([0], [EpisodeSpec(0, f"gymnasium/{name}", 0, 0)])
        seen, given = env.new_observation(1), whole.new_observation(1)
        env.observe([0], seen)
        whole.observe([0], given)
        assert (env.info.cameras, env.info.image_shape) == (("top",), (32, 32))
        picture: Array = seen.images[0, 0].numpy()
        assert np.array_equal(picture, resize(given.images[0, 0].numpy(), 32))
        assert not picture[: bars // 2].any()
        assert picture[bars // 2].any()
        assert np.array_equal(seen.proprio, given.proprio)


def test_fewer_cameras_than_the_policy_looks_at_are_refused() -> None:
    with pytest.raises(UserError, match="the policy looks at 2 cameras, and it has top"):
        FittedImages(GymnasiumVecEnv([ARMS], 1), image_size=64, cameras=2, resize=bilinear_pillow)
