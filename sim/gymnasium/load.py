"""gymnasium's ids: what they make, what is known of them before an episode, and what their pictures are like."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import cv2
import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec, load_env_creator

from embodied_rl.errors import UserError
from embodied_rl.sim.gymnasium.actions import ActionMap
from embodied_rl.sim.gymnasium.probe import Probed, one_line
from embodied_rl.sim.gymnasium.spaces import ObservationLayout, ReadOptions
from embodied_rl.types import Array
from embodied_rl.vec_env import EnvInfo, SimulatorFailed

SUITE = "gymnasium"
RGB = "rgb_array"
DEFAULT_HORIZON = 1000
"""Control steps of an episode whose id names no `max_episode_steps`."""
_DEFAULT_HZ = 30.0


def env_info(
    layout: ObservationLayout,
    actions: ActionMap,
    read: ReadOptions,
    metadata: Mapping[str, Any],
    horizon: int,
    probed: Sequence[Probed],
) -> EnvInfo:
    """What is known of envs of one layout. metadata: an env's. horizon: the longest. probed: of each task."""
    said = control_rate(metadata)
    hz = read.control_hz or said or _DEFAULT_HZ
    reads = layout.describe()
    if layout.images:
        who = "--env.control-hz" if read.control_hz else "metadata['render_fps']" if said else "assumed"
        reads += [f"rate: {hz:g} Hz, {who}", *_instructions(read, probed)]
    return EnvInfo(
        backend="gymnasium",
        suite=SUITE,
        simulator=f"gymnasium {gymnasium.__version__}",
        renderer=RGB,
        cameras=layout.cameras,
        image_shape=layout.image_shape,
        proprio_dim=layout.proprio_dim,
        state_dim=layout.state_dim,
        action_dim=actions.dim,
        action_low=actions.low,
        action_high=actions.high,
        control_hz=hz,
        max_episode_steps=horizon,
        has_success=all(found.has_success for found in probed),
        repeatable=all(found.repeatable for found in probed),
        instructed=bool(read.instruction) or all(found.instruction for found in probed),
        reads=tuple(reads),
    )


def _instructions(read: ReadOptions, probed: Sequence[Probed]) -> list[str]:
    """What is to be done, and who says so: one line, none where nobody does."""
    if read.instruction:
        return [f"instruction: '{read.instruction}', --env.instruction"]
    first = [found.instruction for found in probed if found.instruction]
    return [f"instruction: the environment's, first '{first[0]}'"] if first else []


def make(name: str) -> gymnasium.Env[Any, Any]:
    """The environment of an id, without a time limit of its own; it draws as `rgb_array` where it can.

    Raises:
        UserError: There is no such id, or something that it needs is not installed.
    """
    spec = spec_of(name)
    with opening(name):
        drawing = drawing_options(spec.entry_point)
        return gymnasium.make(name, max_episode_steps=-1, disable_env_checker=True, **drawing)


@contextmanager
def opening(name: str) -> Iterator[None]:
    """What the entry point of an id raises, or the module that it is in, as a UserError in one line."""
    try:
        yield
    except (gymnasium.error.DependencyNotInstalled, ImportError) as error:
        raise UserError(f"{name} needs something that is not installed: {one_line(error)}") from error
    except gymnasium.error.Error as error:
        raise UserError(f"gymnasium can't make '{name}': {one_line(error)}") from error
    except Exception as error:
        raise UserError(f"'{name}' can't be made: it raises {type(error).__name__}: {one_line(error)}") from error


def spec_of(name: str) -> EnvSpec:
    """What gymnasium knows of an id, as `gymnasium.make` takes it.

    Of NAMESPACE/ID, the package NAMESPACE is imported where gymnasium does not know it yet: it makes its ids known.

    Raises:
        UserError: There is no such id.
    """
    module, colon, plain = name.rpartition(":")
    if colon and (not module or module.startswith(".")):
        raise UserError(f"gymnasium has no {name!r}: write ID, or MODULE:ID with the full name of a module.")
    namespace = plain.partition("/")[0]
    try:
        if colon:
            import_module(module)
        elif "/" in plain and plain not in gymnasium.registry and namespace.isidentifier() and find_spec(namespace):
            import_module(namespace)
        return gymnasium.spec(plain)
    except (gymnasium.error.Error, ModuleNotFoundError) as error:
        raise UserError(f"gymnasium has no {name!r}: {one_line(error)}") from error


def drawing_options(entry_point: Any) -> dict[str, Any]:
    """What lets the env of an entry point draw; nothing where it does not, as not all take a render_mode."""
    made_by = load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
    return {"render_mode": RGB} if RGB in getattr(made_by, "metadata", {}).get("render_modes", ()) else {}


def horizon_of(name: str) -> int:
    """Control steps of an episode of an id."""
    return spec_of(name).max_episode_steps or DEFAULT_HORIZON


@contextmanager
def _headless_gl() -> Iterator[None]:
    """Let gymnasium's MuJoCo renderer take EGL where there is no screen: its own choice ends the process there."""
    if "MUJOCO_GL" in os.environ or "DISPLAY" in os.environ:
        yield
        return
    os.environ["MUJOCO_GL"] = "egl"
    try:
        yield
    finally:
        del os.environ["MUJOCO_GL"]


def control_rate(metadata: Mapping[str, Any]) -> float | None:
    """Control steps a second as `metadata` says; None where it says nothing that can be one."""
    try:
        said = float(metadata.get("render_fps"))  # pyright: ignore[reportArgumentType]
    except (TypeError, ValueError):
        return None
    return said if 0 < said < math.inf else None


def draw(render: Callable[[], Any], name: str, size: int) -> Array:
    """What `render` draws, scaled with black bars to uint8 [size, size, 3]. name: the id.

    Raises:
        NotImplementedError: Something that drawing needs is not installed.
        SimulatorFailed: It raised something else.
    """
    try:
        with _headless_gl():
            image = render()
        return squared(image, size)
    except (gymnasium.error.DependencyNotInstalled, ImportError) as error:
        raise NotImplementedError(f"{name} can't be drawn: {one_line(error)}") from error
    except Exception as error:
        raise SimulatorFailed(f"{name} broke while it was drawn: {one_line(error)}") from error


def squared(drawn: Any, size: int) -> Array:
    """A picture scaled, with black bars, to uint8 [size, size, 3]."""
    image = np.asarray(drawn)
    if image.dtype.kind not in "iuf" or image.ndim != 3 or image.shape[2] not in (3, 4) or not image.size:
        raise ValueError(f"no picture [H, W, 3], but {image.dtype} {list(image.shape)}")
    height, width = image.shape[:2]
    scale = size / max(height, width)
    small = (max(1, round(width * scale)), max(1, round(height * scale)))
    shrunk = cv2.resize(np.ascontiguousarray(image[..., :3]), small, interpolation=cv2.INTER_AREA)
    out = np.zeros((size, size, 3), np.uint8)
    top, left = (size - small[1]) // 2, (size - small[0]) // 2
    out[top : top + small[1], left : left + small[0]] = shrunk
    return out
