"""What a message must hold, in both layouts, and what is said where it does not."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from embodied_rl.real_robot.server.images import ImageFitter
from embodied_rl.real_robot.server.observations import PolicySpec, Request, RequestError, read_request
from tests.real_robot.openpi_like import libero_obs
from tests.real_robot.serving import SPEC

FIT = ImageFitter(size=8)
NO_STATE = PolicySpec(cameras=1, image_size=8, proprio_dim=0, chunk_len=3, action_dim=7)


def read(message: Any, spec: PolicySpec = SPEC) -> Request:
    return read_request(message, spec, FIT)


def generic(seed: int = 0) -> dict[str, Any]:
    obs = libero_obs(seed)
    images = np.stack([obs["observation/image"], obs["observation/wrist_image"]])
    return {"images": images, "proprio": obs["observation/state"], "instruction": obs["prompt"]}


def test_both_layouts_say_the_same() -> None:
    one, other = read(libero_obs(0)), read(generic(0) | {"images": list(generic(0)["images"])})
    assert np.array_equal(one.images, other.images)
    assert one.images.shape == (2, 8, 8, 3)
    assert np.array_equal(one.images[1], libero_obs(0)["observation/wrist_image"])
    assert one.proprio.dtype == np.float32
    assert np.array_equal(one.proprio, other.proprio)
    assert one.instruction == other.instruction == "put bowl 0 on the plate"


def test_a_policy_that_needs_less_takes_less() -> None:
    obs = libero_obs(0)
    for keys in (obs, {key: obs[key] for key in ("observation/image", "prompt")}):
        request = read(keys, NO_STATE)
        assert request.images.shape == (1, 8, 8, 3)
        assert request.proprio.shape == (0,)


def test_a_state_policy_takes_numbers_alone() -> None:
    spec = PolicySpec(cameras=0, image_size=1, proprio_dim=3, chunk_len=1, action_dim=1, instruction=False)
    for message in (
        {"proprio": [1, 2, 3]},
        {"observation/state": np.array([1, 2, 3])},
        {"proprio": [1, 2, 3], "seed": 1},
    ):
        request = read(message, spec)
        assert request.proprio.tolist() == [1, 2, 3]
        assert request.images.shape == (0, 1, 1, 3)
        assert request.instruction == ""
    with pytest.raises(RequestError, match="missing key 'observation/state'"):
        read({}, spec)


def test_pictures_of_other_kinds() -> None:
    image = libero_obs(3)["observation/image"]
    for same in (image.transpose(2, 0, 1), image / 255, (image.transpose(2, 0, 1) / 255).astype(np.float32)):
        assert np.array_equal(read(libero_obs(3) | {"observation/image": same}).images[0], image)


def test_options() -> None:
    request = read(libero_obs(0) | {"seed": 7, "decision": np.int64(3), "deadline_ms": 20})
    assert (request.seed, request.decision, request.deadline_ms) == (7, 3, 20.0)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"observation/image": None}, r"'observation/image' is a picture \[H,W,3\], got None"),
        ({"observation/image": np.zeros((8, 8), np.uint8)}, r"a picture \[H,W,3\], got uint8 \[8, 8\]"),
        ({"observation/image": np.zeros((1, 8, 8, 3), np.uint8)}, r"got uint8 \[1, 8, 8, 3\]"),
        ({"observation/image": np.zeros((0, 8, 3), np.uint8)}, "a side has 8 to 4096 pixels"),
        ({"observation/image": np.zeros((9, 5000, 3), np.uint8)}, "5000 x 9"),
        ({"observation/image": np.full((8, 8, 3), np.nan)}, r"outside \[0, 1\]"),
        ({"observation/image": np.full((8, 8, 3), 255.0)}, "send uint8"),
        ({"observation/image": np.zeros((8, 8, 3), np.int64)}, "uint8, or float"),
        ({"observation/state": np.zeros(7)}, "has 7 numbers, and the policy reads 8"),
        ({"observation/state": np.zeros((1, 8))}, "has 1x8 numbers"),
        ({"observation/state": np.array([0, 0, np.nan, 0, 0, 0, 0, 0])}, "not finite, at 2"),
        ({"observation/state": np.full(8, 1e300)}, "not finite, at 0"),
        ({"observation/state": [0, 0, 0, "x", 0, 0, 0, 0]}, "an array of numbers"),
        ({"observation/state": [[0], 0, 0, 0, 0, 0, 0, 0]}, "an array of numbers"),
        ({"prompt": ""}, "'prompt' is a text"),
        ({"prompt": b"open"}, "'prompt' is a text"),
        ({"prompt": "x" * 2000}, "2000 characters"),
        ({"seed": -1}, "'seed' is a whole number from 0"),
        ({"seed": True}, "'seed' is a whole number from 0"),
        ({"seed": 2**63}, "'seed' is a whole number from 0"),
        ({"decision": 1.5}, "'decision' is a whole number from 0"),
        ({"deadline_ms": float("nan")}, "'deadline_ms' is a number above 0"),
        ({"observation/wrist_img": 0}, "unknown key 'observation/wrist_img'. Did you mean 'observation/wrist_image'"),
        ({b"prompt": 0}, "unknown key"),
        ({"x\ny": 0}, "unknown key"),
        ({"images": np.zeros((2, 8, 8, 3), np.uint8)}, "keys of two layouts"),
    ],
)
def test_what_is_wrong_is_named(change: dict[Any, Any], text: str) -> None:
    with pytest.raises(RequestError, match=text) as found:
        read(libero_obs(0) | change)
    assert "\n" not in str(found.value)


@pytest.mark.parametrize("key", list(libero_obs(0)))
def test_a_missing_key_is_named(key: str) -> None:
    with pytest.raises(RequestError, match=f"missing key '{key}'"):
        read({name: value for name, value in libero_obs(0).items() if name != key})


@pytest.mark.parametrize("message", [None, 1, "x", [1], np.zeros(3)])
def test_a_message_is_a_map(message: Any) -> None:
    with pytest.raises(RequestError, match="a map of keys"):
        read(message)


def test_the_number_of_cameras_is_the_policys() -> None:
    with pytest.raises(RequestError, match="holds 3 pictures, and the policy looks at 2"):
        read(generic() | {"images": np.zeros((3, 8, 8, 3), np.uint8)})
    three = PolicySpec(cameras=3, image_size=8, proprio_dim=0, chunk_len=3, action_dim=7)
    with pytest.raises(RequestError, match="3 cameras: send them as 'images'"):
        read(libero_obs(0), three)


JUNK = (
    st.none()
    | st.integers()
    | st.floats()
    | st.text(max_size=9)
    | st.binary(max_size=9)
    | st.lists(st.integers() | st.none() | st.lists(st.floats(), max_size=3), max_size=9)
    | hnp.arrays(st.sampled_from(["u1", "f4", "f8", "i8", "?"]), hnp.array_shapes(max_dims=4, max_side=9, min_side=0))
)


@settings(max_examples=80)
@given(
    change=st.dictionaries(st.sampled_from([*libero_obs(0), *generic(), "seed", "decision", "deadline_ms", "y"]), JUNK)
)
def test_any_other_message_is_read_or_refused(change: dict[str, Any]) -> None:
    for base in (libero_obs(0), generic(), {}):
        with suppress(RequestError):
            request = read(base | change)
            assert request.images.shape == (2, 8, 8, 3)
            assert request.proprio.shape == (8,)
            assert np.isfinite(request.proprio).all()
