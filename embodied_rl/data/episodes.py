"""A store of episodes on disk: demonstrations, rollouts, failures and corrections, each one thing.

    STORE/store.json                   what every frame holds, and whose store it is
    STORE/episodes/000042.parquet      numbers of episode 42; where it stands, the episode is whole
    STORE/episodes/000042.CAMERA.mp4   its pictures, lossless
    STORE/episodes/000042.safetensors  further arrays of it, where there are some

An episode has a frame for each control step, so the data set that `EpisodeStore.export` makes is an ordinary one at the
control rate; `columns` says in which frames a decision began. Failures are kept and marked.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from embodied_rl.data import layout, writer
from embodied_rl.data.arrays import read_arrays, write_arrays
from embodied_rl.data.columns import STEP_COLUMNS, step_columns
from embodied_rl.data.frames import frames_of_videos
from embodied_rl.data.layout import ACTION, ENDS_IN_SUCCESS, EXECUTED, STATE, DatasetSpec, Episode
from embodied_rl.data.lerobot import Demonstrations
from embodied_rl.errors import UserError
from embodied_rl.types import Array

Source = Literal["expert", "policy", "mixed", "human"]
"""Who acted in an episode: a scripted expert, a policy, a policy with a person's help, or a person."""
_ABOUT = "store.json"


@dataclasses.dataclass(frozen=True, slots=True)
class EpisodeInfo:
    """What is known of an episode as a whole: columns `embodied_rl/...` of meta/episodes in an exported data set.

    success: 1 where who acted alone reached the goal, 0 where not, -1 unknown. ends_in_success: 1 where the goal holds
    after the last frame, whoever reached it. policy: digest of the weights that acted, '' without one. episode_return:
    its summed rewards. steps: control steps. terminated: 1 where its task ended it, 0 where time did.
    human_steps: those of a person. helped_success: 1 where the goal was reached with a person's help.
    """

    task: str
    init_state: int
    seed: int
    source: Source = "policy"
    success: int = -1
    ends_in_success: int = 0
    policy: str = ""
    episode_return: float = 0.0
    decisions: int = 0
    steps: int = 0
    terminated: int = 0
    human_steps: int = 0
    helped_success: int = 0


class EpisodeStore:
    """Episodes in a folder, by key. Keys order them: what is read never depends on when an episode arrived.

    Args:
        root: the folder; it is made where there is none.
        spec: what every frame holds; `columns` are added.
        identity: JSON values that must be the same whenever the folder is opened, such as a digest of what belongs to
            it.

    Raises:
        UserError: the folder was made for other frames, or with another identity.

    Example:
        >>> store = EpisodeStore(Path("day1"), spec)
        >>> store.add(episode, EpisodeInfo("kitchen/stove", init_state=0, seed=7, success=1, ends_in_success=1))
        True
        >>> data = store.at(1)
    """

    def __init__(self, root: Path, spec: DatasetSpec, identity: dict[str, Any] | None = None) -> None:
        self.root, self.spec = root, dataclasses.replace(spec, columns=STEP_COLUMNS)
        about = {"frames": dataclasses.asdict(self.spec), "identity": identity or {}}
        about = json.loads(json.dumps(about))
        path = root / _ABOUT
        (root / "episodes").mkdir(parents=True, exist_ok=True)
        if not path.is_file():
            writer.write_json(path, about)
        found = _read(path)
        for part, mine in about.items():
            for name in {*mine, *found[part]}:
                if found[part].get(name) != mine.get(name):
                    raise UserError(
                        f"{root} holds episodes with another {name.replace('_', ' ')} ({found[part].get(name)}, here "
                        f"{mine.get(name)}): put back what it was begun with, or begin a new run"
                    )

    def keys(self) -> list[int]:
        """Of the episodes that are whole, ascending."""
        return sorted(writer.stored(self.root)[0])

    def info(self, key: int) -> EpisodeInfo:
        """What is known of a stored episode."""
        return EpisodeInfo(**writer.read_extra(self.root, key))

    def add(self, episode: Episode, info: EpisodeInfo, arrays: Mapping[str, Array] | None = None) -> bool:
        """Store an episode; whether it was written. One that is there already, of the same start and policy, stays.

        Another one with its key gives way: it was of a run that went on from an earlier checkpoint.

        Args:
            episode: its frames.
            info: what is known of it.
            arrays: further ones beside it, for `arrays`; they are no part of an exported data set.
        """
        if episode.key in writer.stored(self.root)[0]:
            if _same(self.info(episode.key), info):
                return False
            writer.remove_episode(self.root, episode.key)
        if arrays is not None:  # before the episode counts as stored
            write_arrays(self._arrays(episode.key), arrays)
        writer.add_episode(self.root, self.spec, dataclasses.replace(episode, extra=dataclasses.asdict(info)))
        return True

    def arrays(self, key: int) -> dict[str, Array]:
        """The further arrays of a stored episode; UserError where there are none."""
        return read_arrays(self._arrays(key))

    def _arrays(self, key: int) -> Path:
        return self.root / "episodes" / f"{key:06d}.safetensors"

    def has(self, key: int, info: EpisodeInfo) -> bool:
        """Whether an episode of the same key, start and policy is stored whole."""
        return key in writer.stored(self.root)[0] and _same(self.info(key), info)

    def at(self, count: int) -> Demonstrations:
        """The first `count` episodes by key; later ones are unseen. Pictures are decoded when they are asked for.

        Raises:
            UserError: there are fewer, or one is damaged.
        """
        keys = self.keys()[:count]
        if len(keys) < count or not keys:
            raise UserError(f"{self.root} has {len(keys)} episodes, {max(count, 1)} are needed: restore the folder")
        return self._read(keys)

    def _read(self, keys: Collection[int]) -> Demonstrations:
        shards = writer.load_shards(self.root, self.spec, set(keys))
        lengths = [shard.frames.num_rows for shard in shards]
        starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        table = pa.concat_tables([shard.frames.replace_schema_metadata(None) for shard in shards])
        state, action, executed = (_matrix(table, name) for name in (STATE, ACTION, EXECUTED))
        success = np.array([shard.head["extra"][ENDS_IN_SUCCESS] == 1 for shard in shards])
        failed = np.array([shard.head["extra"]["success"] == 0 for shard in shards])
        cameras = tuple(map(layout.camera_key, self.spec.cameras))
        words = [
            shard.head["instruction"] for shard, length in zip(shards, lengths, strict=True) for _ in range(length)
        ]
        size = self.spec.image_shape
        no_images = np.zeros((len(table), 0, *size, 3), np.uint8)
        return Demonstrations(
            frames_of_videos(self.root, [shard.videos for shard in shards], lengths, size) if cameras else no_images,
            state,
            action,
            (executed != action).any(axis=1),
            starts,
            success,
            words,
            cameras,
            {"fps": self.spec.fps},
            self.root,
            columns=step_columns(table, starts, success),
            judged=success | failed,
        )

    def export(self, out: Path, stamp: dict[str, Any], keys: Collection[int] | None = None) -> int:
        """Write stored episodes as a LeRobot v3 data set; the store stays as it is.

        Args:
            out: its folder, which must not exist.
            stamp: what info.json says of where it comes from.
            keys: those to write (None: all).

        Returns:
            How many were written.

        Raises:
            UserError: `out` exists, or there is no episode to write.
        """
        if out.exists():
            raise UserError(f"{out} already exists; choose another --out or remove it")
        shards = writer.load_shards(self.root, self.spec, keys)
        if not shards:
            raise UserError(f"{self.root} has no episode to write")
        partial = layout.partial_path(out)
        writer.join_shards(out, self.spec, stamp, shards)
        shutil.rmtree(partial)
        return len(shards)


def open_store(root: Path) -> EpisodeStore:
    """The store in a folder, as it was made; UserError where there is none."""
    path = root / _ABOUT
    if not path.is_file():
        raise UserError(f"{root} holds no episodes: it has no {_ABOUT}")
    about = _read(path)
    frames: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in about["frames"].items()
    }
    return EpisodeStore(root, DatasetSpec(**frames), about["identity"])


def _read(path: Path) -> dict[str, Any]:
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
        return {"frames": dict(about["frames"]), "identity": dict(about["identity"])}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is damaged ({type(error).__name__}): restore it, or remove the folder") from error


def _same(one: EpisodeInfo, two: EpisodeInfo) -> bool:
    """Whether both began alike and had one policy. A run that broke a simulator begins again with another seed."""
    return (one.task, one.init_state, one.policy) == (two.task, two.init_state, two.policy)


def _matrix(table: pa.Table, name: str) -> np.ndarray:
    column = table.column(name).combine_chunks()
    return column.flatten().to_numpy(zero_copy_only=False).reshape(len(column), -1)
