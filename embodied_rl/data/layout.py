"""The LeRobot v3.0 dataset layout: names and schema.

    meta/info.json                                   features, fps, totals, path templates
    meta/stats.json                                  statistics per feature
    meta/tasks.parquet                               task_index, indexed by the instruction
    meta/episodes/chunk-000/file-000.parquet         one row an episode: length, rows, files, video times, statistics
    data/chunk-000/file-000.parquet                  one row a frame, one row group an episode
    videos/<camera feature>/chunk-000/file-000.mp4   frames of several episodes, one after the other

What LeRobot does not define stands under the key `embodied_rl` of info.json and in episode columns `embodied_rl/...`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from embodied_rl.types import Array

PROPRIO_NAMES = (
    "eef_x",
    "eef_y",
    "eef_z",
    "eef_axis_angle_x",
    "eef_axis_angle_y",
    "eef_axis_angle_z",
    "finger_1",
    "finger_2",
)
ACTION_NAMES = ("delta_x", "delta_y", "delta_z", "delta_rot_x", "delta_rot_y", "delta_rot_z", "gripper")
"""What LIBERO's proprioception and actions are called in a data set."""
HAND_NAMES = ("hand_x", "hand_y", "hand_z", "gripper_open")
HAND_ACTION_NAMES = ("delta_x", "delta_y", "delta_z", "gripper")
"""Of a hand that does not turn: MetaWorld's."""

VERSION = "v3.0"
FOLDERS = ("data", "meta", "videos")
CHUNK_FILES = 1000
DATA_FILE_MB = 100
VIDEO_FILE_MB = 200
INFO_PATH = "meta/info.json"
STATS_PATH = "meta/stats.json"
TASKS_PATH = "meta/tasks.parquet"
EPISODES_PATH = "meta/episodes/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
DATA_PATH = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
VIDEO_PATH = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
STATE, ACTION, EXECUTED = "observation.state", "action", "executed_action"
NAMESPACE = "embodied_rl"
ENDS_IN_SUCCESS = "ends_in_success"
"""Of an episode, under the namespace: 1 where its last frame is the end of an attempt that succeeded."""
REWARD, DONE, SUCCESS = "next.reward", "next.done", "next.success"
"""Columns: what the step after a frame was paid, whether it ended the episode, and whether in success."""
INTERVENTION = "complementary_info.is_intervention"
"""Column: whether a person acted (LeRobot's name)."""
DECISION = f"{NAMESPACE}.decision"
"""Column: number of the decision, counted in the episode; a chunk begins where it changes."""
CAMERA_PREFIX = "observation.images."


@dataclass(frozen=True, slots=True)
class DatasetSpec:
    """What every frame of a dataset holds.

    cameras: in the order of axis V; image_size: H and W in pixels, or one number for both; fps: Hz; columns: further
    ones of one number a frame, each name with its dtype, such as 'bool'.
    """

    cameras: tuple[str, ...]
    image_size: int | tuple[int, int]
    state_names: tuple[str, ...]
    action_names: tuple[str, ...]
    fps: int = 20
    robot_type: str = "panda"
    columns: Mapping[str, str] = field(default_factory=dict)

    @property
    def image_shape(self) -> tuple[int, int]:
        """(H, W) in pixels."""
        height, width = (self.image_size,) * 2 if isinstance(self.image_size, int) else self.image_size
        return height, width

    def features(self) -> dict[str, dict[str, Any]]:
        """The `features` of info.json, without the video blocks that are known only once a video is written."""
        size = [*self.image_shape, 3]
        images = {
            camera_key(camera): {"dtype": "video", "shape": size, "names": ["height", "width", "channels"]}
            for camera in self.cameras
        }
        actions = {"dtype": "float32", "shape": [len(self.action_names)], "names": list(self.action_names)}
        state = {"dtype": "float32", "shape": [len(self.state_names)], "names": list(self.state_names)}
        scalars = {
            name: {"dtype": "float32" if name == "timestamp" else "int64", "shape": [1], "names": None}
            for name in ("timestamp", "frame_index", "episode_index", "index", "task_index")
        }
        more = {name: {"dtype": dtype, "shape": [1], "names": None} for name, dtype in self.columns.items()}
        return images | {STATE: state, ACTION: actions, EXECUTED: dict(actions)} | more | scalars


@dataclass(slots=True)
class Episode:
    """An episode of T frames.

    key: number in the plan that produced it; it fixes the order in the dataset. instruction: the language task.
    images uint8 [T,V,H,W,3]; state float32 [T,P]; action float32 [T,A], what the policy should learn;
    executed float32 [T,A], what the simulator was given. extra: values for the columns `embodied_rl/<name>`.
    columns: [T] for each of the layout's further columns.
    """

    key: int
    instruction: str
    images: Array
    state: Array
    action: Array
    executed: Array
    extra: dict[str, str | int | float] = field(default_factory=dict)
    columns: dict[str, Array] = field(default_factory=dict)

    def check(self, spec: DatasetSpec) -> None:
        """Raise ValueError unless shapes and types are those of `spec` and all numbers are finite."""
        t = len(self.images)
        expected = {
            "images": (self.images, np.uint8, (t, len(spec.cameras), *spec.image_shape, 3)),
            "state": (self.state, np.float32, (t, len(spec.state_names))),
            "action": (self.action, np.float32, (t, len(spec.action_names))),
            "executed": (self.executed, np.float32, (t, len(spec.action_names))),
            **{name: (self.columns[name], np.dtype(dtype), (t,)) for name, dtype in spec.columns.items()},
        }
        for name, (value, dtype, shape) in expected.items():
            if value.dtype != dtype or value.shape != shape or t == 0:
                raise ValueError(f"episode {self.key}: {name} must be {dtype} {shape}, got {value.dtype} {value.shape}")
            if not np.isfinite(value).all():
                raise ValueError(f"episode {self.key}: {name} has non-finite values")


def camera_key(camera: str) -> str:
    """Feature name of a camera."""
    return f"{CAMERA_PREFIX}{camera}"


def partial_path(root: Path) -> Path:
    """Where a data set stands until it is complete."""
    root = Path(os.path.abspath(root))
    return root.with_name(root.name + ".partial")
