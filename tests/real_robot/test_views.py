"""Pictures that are not alive: repeated while the arm moves, also under a running clock, or even."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from embodied_rl.real_robot.core.views import LiveView, even

RNG = np.random.default_rng(0)
SCENE = RNG.integers(0, 256, (64, 64, 3), np.uint8)
Draw = Callable[[int], np.ndarray]


def arm(way_m: float, base: np.ndarray = SCENE) -> np.ndarray:
    """A scene in which a dark arm of 10 x 12 pixels is further right by 50 pixels a metre, without any noise."""
    image, left = base.copy(), 10 + round(50 * way_m)
    image[20:32, left : left + 10] = 20
    return image


def first_doubt(draw: Draw, speed: float, images: int = 30) -> float | None:
    """How far the tool is when the picture is doubted, m; None where it never is."""
    view = LiveView()
    for number in range(images):
        way = number * speed / 20
        if view.look(draw(number), np.array([[0.3 + way, 0.0, 0.2]])):
            return way
    return None


@pytest.mark.parametrize("speed", [0.05, 0.2, 0.5])
def test_an_arm_in_the_picture_is_alive_without_any_noise(speed: float) -> None:
    assert first_doubt(lambda number: arm(min(0.7, number * speed / 20)), speed) is None


@pytest.mark.parametrize("speed", [0.1, 0.2, 0.5])
def test_a_repeated_picture_is_found(speed: float) -> None:
    way = first_doubt(lambda number: SCENE, speed)
    assert way is not None
    assert 0.08 < way < 0.12 + 3 * speed / 20


def with_clock(number: int, image: np.ndarray) -> np.ndarray:
    """Every picture has another pattern in its corner."""
    stamped = image.copy()
    stamped[2:10, 4:28] = np.random.default_rng(number).integers(0, 256, (8, 24, 1))
    return stamped


def with_second(number: int, image: np.ndarray) -> np.ndarray:
    """Every twentieth picture has another digit."""
    stamped = image.copy()
    stamped[2:6, 4:8] = 13 * (number // 20) % 256
    return stamped


@pytest.mark.parametrize("clock", [with_clock, with_second])
def test_a_clock_in_a_repeated_picture_is_no_sign_of_life(clock: Callable[[int, np.ndarray], np.ndarray]) -> None:
    way = first_doubt(lambda number: clock(number, SCENE), 0.3)
    assert way is not None
    assert way < 0.25
    assert first_doubt(lambda number: clock(number, arm(min(0.7, number * 0.015))), 0.3) is None


@pytest.mark.parametrize("buffers", [2, 4, 30])
def test_old_pictures_that_come_in_turn_are_found(buffers: int) -> None:
    """A driver that hands out the same few buffers: each differs from the one before, as live pictures do."""
    scenes = [np.random.default_rng(number).integers(0, 256, SCENE.shape, np.uint8) for number in range(buffers)]
    way = first_doubt(lambda number: scenes[number % buffers], 0.3, images=100)
    assert way is not None
    assert way < 0.08 + (buffers + 4) * 0.3 / 20
    assert first_doubt(lambda number: scenes[number % buffers], 0.0, images=100) is None, "nobody moves"


def test_a_sensors_noise_is_life_where_nothing_else_changes() -> None:
    def noisy(number: int) -> np.ndarray:
        grain = np.random.default_rng(number).normal(0, 2, SCENE.shape)
        return np.clip(SCENE + grain, 0, 255).astype(np.uint8)

    assert first_doubt(noisy, 0.5) is None


def test_a_still_arm_may_see_the_same_for_ever() -> None:
    assert first_doubt(lambda number: SCENE, 0.0, images=500) is None


def test_a_doubt_stays_while_the_arm_rests_and_ends_with_another_picture() -> None:
    view = LiveView()
    for number in range(20):
        view.look(SCENE, np.array([[0.02 * number, 0.0, 0.0]]))
    assert view.stuck
    for number in range(5):
        assert "stuck" in view.look(with_second(20 * number, SCENE), np.array([[0.4, 0.0, 0.0]])) or number == 0
    assert view.look(arm(0.4), np.array([[0.4, 0.0, 0.0]])) == ""
    assert not view.stuck


def test_a_camera_of_another_size_begins_anew() -> None:
    view = LiveView()
    for number in range(20):
        view.look(SCENE, np.array([[0.02 * number, 0.0, 0.0]]))
    assert view.look(SCENE[:32], np.array([[0.5, 0.0, 0.0]])) == ""


@pytest.mark.parametrize("size", [(8, 8), (64, 64), (480, 640), (37, 211)])
@pytest.mark.parametrize("level", [0, 128, 255])
def test_an_even_picture_is_told_with_noise_and_under_a_clock(size: tuple[int, int], level: int) -> None:
    flat = np.full((*size, 3), level, np.uint8)
    assert "even" in even(flat)
    grain = np.clip(flat + np.random.default_rng(1).normal(0, 4, flat.shape), 0, 255).astype(np.uint8)
    assert size == (8, 8) or "even" in even(grain)
    flat[: size[0] // 8, : size[1] // 2] = 255 - level // 2
    assert "even" in even(flat)


def test_a_scene_is_not_even() -> None:
    assert even(SCENE) == ""
    ramp = np.broadcast_to(np.linspace(60, 90, 64)[:, None, None], (64, 64, 3)).astype(np.uint8)
    assert even(ramp) == "", "a plain table in uneven light"
    assert even(ramp.transpose(1, 0, 2)) == ""
