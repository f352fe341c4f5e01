"""The data sets of `embodied-rl sft`: found, read, brought to one policy's cameras and units, and said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from embodied_rl.config.sft import SftCommand, weighted_data
from embodied_rl.config.suites import find_suite
from embodied_rl.data import lerobot
from embodied_rl.data.actions import fit_actions
from embodied_rl.data.frames import Frames, ImageFit
from embodied_rl.data.layout import NAMESPACE
from embodied_rl.data.lerobot import Demonstrations
from embodied_rl.data.metadata import describe_left_out, read_metadata, short_name
from embodied_rl.errors import UserError, suggest
from embodied_rl.policies.checkpoints.hub import resolve, source_name
from embodied_rl.policies.family import FreshRequest, Room
from embodied_rl.sim.mujoco.robot import PANDA
from embodied_rl.utils.words import counted, same_rate
from embodied_rl.vec_env import EnvInfo

Names = tuple[str, ...]


@dataclass(slots=True)
class Source:
    """A data set of the command.

    key: of its statistics. places: which of the policy's cameras its own are, in order. control_hz: at which the
    demonstrator acted.
    """

    name: str
    key: str
    weight: float
    data: Demonstrations
    fingerprint: str
    places: tuple[int, ...]
    control_hz: float

    def describe(self) -> dict[str, Any]:
        """What the checkpoint says of it."""
        return {
            "path": self.name,
            "sha256": self.fingerprint,
            "episodes": len(self.data),
            "frames": len(self.data.images),
            "collected": self.data.source,
        }

    def robot(self) -> dict[str, Any]:
        """What the checkpoint says of the robot."""
        return {
            "weight": self.weight,
            "cameras": self.data.camera_names,
            "control_hz": self.control_hz,
            "own_units": self.data.own_units,
        }


def fingerprints(command: SftCommand) -> list[str]:
    """SHA-256 of each data set."""
    return [lerobot.fingerprint(resolve(name, "dataset")) for name, _ in weighted_data(command.data)]


def open_sources(command: SftCommand, fit: ImageFit | None, console: Console) -> list[Source]:
    """Read the data sets and say what they are.

    Raises:
        UserError: One does not say what its actions, cameras or rate are, or starts from held-out states.
    """
    sources = read_sources(command, fit, console)
    if len(sources) > 1:
        _name_statistics(command, sources, console)
    return sources


def read_sources(
    command: SftCommand, fit: ImageFit | None, console: Console, *, failures: bool = False
) -> list[Source]:
    """`open_sources` for a policy that has its statistics. failures: failed attempts may be among the episodes."""
    named = [(name, resolve(name, "dataset"), weight) for name, weight in weighted_data(command.data)]
    chosen = _cameras(command, [folder for _, folder, _ in named])
    return [
        _open(command, name, weight, folder, cameras, fit, console, failures=failures)
        for (name, folder, weight), cameras in zip(named, chosen, strict=True)
    ]


def _open(
    command: SftCommand,
    name: str,
    weight: float,
    folder: Path,
    cameras: Sequence[tuple[int, str]],
    fit: ImageFit | None,
    console: Console,
    *,
    failures: bool,
) -> Source:
    data = lerobot.load(folder, [camera for _, camera in cameras], fit)
    if data.source.get("split") == "heldout":
        raise UserError(
            f"{name} starts from held-out states, which evaluation needs unseen; collect with --split train"
        )
    if data.source.get("keep") == "all" and not failures:
        raise UserError(f"{name} holds failed attempts, which nobody should imitate: collect without --keep all")
    fingerprint = lerobot.fingerprint(folder)

    def say(text: str) -> None:
        console.print(text, soft_wrap=True)

    say(
        f"{name}: {counted(len(data), 'episode')}, {counted(len(data.images), 'frame')}, "
        f"{len(set(data.instruction))} instructions, cameras {', '.join(data.camera_names)}, sha256 {fingerprint[:12]}"
    )
    if no_cameras := data.no_cameras:
        say(f"left out, no colour cameras: {describe_left_out(no_cameras)}")
    if empty := data.info["total_episodes"] - len(data):
        say(f"{empty} episodes without frames are left out")
    for line in fit_actions(data, command.gripper):
        say(line)
    if isinstance(data.images, Frames):
        data.images.cache_bytes = int(command.image_cache_gib * 2**30 / len(command.data))
        others = set[tuple[int, int]]() if fit is None else set(data.images.sizes) - {(fit.size, fit.size)}
        if fit is not None and others:
            shapes = ", ".join(f"{height} x {width}" for height, width in sorted(others))
            say(f"images of {shapes} are resized to {fit.size} x {fit.size}")
    if data.own_units:
        actions, states = data.action.shape[1], data.state.shape[1]
        say(f"{actions} actions in the robot's own units, {states} states, both normalised by the data's statistics")
    rate = _control_rate(command, name, data, console)
    written = source_name(folder) if str(folder) != name else name
    key = data.source.get("suite", "default")
    return Source(written, key, weight, data, fingerprint, tuple(place for place, _ in cameras), rate)


def _name_statistics(command: SftCommand, sources: list[Source], console: Console) -> None:
    """Give each data set a key of its own, or all one, and say so."""
    if command.statistics == "joint":
        robots = {(s.data.action.shape[1], s.data.state.shape[1], s.places, s.data.own_units) for s in sources}
        if len(robots) > 1:
            raise UserError("--statistics joint is for data sets of one robot: these differ in sizes, cameras or units")
        for source in sources:
            source.key = "joint"
        console.print("statistics: of all frames of all data sets together, under the key joint", soft_wrap=True)
        return
    for source in sources:
        source.key = Path(source.name.partition("@")[0]).name
    keys = [source.key for source in sources]
    if len(set(keys)) < len(keys):
        raise UserError(f"two data sets are called {max(keys, key=keys.count)}: rename the folder of one")
    total = sum(source.weight for source in sources)
    shares = ", ".join(f"{source.key} {source.weight / total:.0%}" for source in sources)
    console.print(
        f"statistics: each data set its own, by key; share of the samples: {shares}. The policy acts as {keys[0]} "
        f"unless --unnorm-key says otherwise",
        soft_wrap=True,
    )


def data_info(source: Source) -> EnvInfo:
    """What the demonstrations show, as an env says it; actions in own units lie between the data's extremes."""
    data = source.data
    dim, low, high = data.action.shape[1], -1.0, 1.0
    if data.own_units:
        low, high = data.action.min(axis=0), data.action.max(axis=0)
        low, high = np.where(low < high, low, low - 1e-3), np.where(low < high, high, high + 1e-3)
    return EnvInfo(
        backend="data",
        suite=source.key,
        simulator="demonstrations",
        renderer="none",
        cameras=tuple(data.camera_names),
        image_shape=(data.images.shape[2], data.images.shape[3]),
        proprio_dim=data.state.shape[1],
        action_dim=dim,
        action_low=tuple(np.broadcast_to(low, dim).astype(float).tolist()),
        action_high=tuple(np.broadcast_to(high, dim).astype(float).tolist()),
        control_hz=source.control_hz,
        max_episode_steps=int(np.diff(data.starts).max()),
    )


def requests(command: SftCommand, sources: Sequence[Source], chunk_len: int) -> list[FreshRequest]:
    """What a policy is made for: a request for each key of statistics."""
    places = 1 + max(place for source in sources for place in source.places)
    sizes = {(source.data.action.shape[1], source.data.state.shape[1], source.places) for source in sources}
    room = None
    if len(sizes) > 1:
        room = Room(max(actions for actions, _, _ in sizes), max(states for _, states, _ in sizes), places)
    words = list(dict.fromkeys(word for source in sources for word in source.data.instruction))
    by_key: dict[str, list[Source]] = {}
    for source in sources:
        by_key.setdefault(source.key, []).append(source)
    return [
        FreshRequest(
            preset=command.preset or "nano",
            chunk_len=chunk_len,
            seed=command.seed,
            instructions=words,
            state=_joined([source.data.state for source in members]),
            action=_joined([source.data.action for source in members]),
            unit_actions=all(source.data.source and not source.data.own_units for source in members),
            unnorm_key=key,
            num_cameras=len(members[0].places),
            own_units=members[0].data.own_units,
            cameras=members[0].places if room is not None and len(members[0].places) < places else (),
            room=room,
        )
        for key, members in by_key.items()
    ]


def _joined(parts: Sequence[np.ndarray]) -> np.ndarray:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _cameras(command: SftCommand, folders: Sequence[Path]) -> list[list[tuple[int, str]]]:
    """Of each data set the cameras to read and the places where the policy sees them, in its order.

    Raises:
        UserError: Neither their names nor --cameras say the order.
    """
    if command.cameras:
        return _named_cameras(command, folders)
    found = [_ordered(folder) for folder in folders]
    if len(set(map(tuple, found))) > 1:
        listed = "; ".join(f"{folder.name}: {', '.join(names)}" for folder, names in zip(folders, found, strict=True))
        raise UserError(
            f"the data sets have other cameras ({listed}): say which are one with --cameras, such as top/front"
        )
    return [list(enumerate(names)) for names in found]


def _named_cameras(command: SftCommand, folders: Sequence[Path]) -> list[list[tuple[int, str]]]:
    alone = len(folders) == 1
    wanted = [tuple(map(short_name, word.split("/"))) for word in command.cameras]
    chosen, used = [], set[int]()
    for folder in folders:
        meta = read_metadata(folder)
        has = {short_name(camera) for camera in (*meta.cameras, *meta.no_cameras)}
        cameras = [(place, name) for place, names in enumerate(wanted) for name in names if name in has]
        for names in wanted:
            if alone and not has.intersection(names):
                raise UserError(f"{folder} has no camera '{'/'.join(names)}'.{suggest(names[0], has)}")
            if len(has.intersection(names)) > 1:
                raise UserError(f"--cameras {'/'.join(names)}: {folder} has both, so they are not one camera")
        if not cameras:
            raise UserError(f"{folder} has none of the cameras {', '.join(command.cameras)}: it has {', '.join(has)}")
        read_metadata(folder, [name for _, name in cameras])  # refuses depth maps and names given twice
        used |= {place for place, _ in cameras}
        chosen.append(cameras)
    for place, names in enumerate(wanted):
        if place not in used:
            raise UserError(f"no data set has a camera '{'/'.join(names)}'")
    names = [name for _, name in chosen[0]]
    if alone and set(names) <= set(PANDA.cameras) and names != sorted(names, key=_on_arm):
        raise UserError(f"--cameras {' '.join(names)}: the simulator gives {', '.join(PANDA.cameras)}: keep its order")
    return chosen


def _ordered(folder: Path) -> list[str]:
    """The cameras of a data set, in the order in which `collect` saw them, or the arm's own last.

    Raises:
        UserError: Nothing says the order.
    """
    meta = read_metadata(folder)
    found, stamp = [short_name(camera) for camera in meta.cameras], meta.info.get(NAMESPACE, {})
    if "expert" in stamp and sorted(stamp.get("cameras", ())) == sorted(found):
        return list(stamp["cameras"])
    if len(found) > 1 and (len(found) > 2 or sum(map(_on_arm, found)) != 1):
        suite = find_suite(str(stamp.get("suite", "")).partition("+")[0])
        scenes = (
            f", the simulator {', '.join(PANDA.cameras)}" if suite is not None and suite.observes == "images" else ""
        )
        raise UserError(
            f"{folder} has the cameras {', '.join(found)}{scenes}: name those to learn from in the order in which "
            f"simulator or robot show them, such as --cameras {' '.join(found)}"
        )
    return sorted(found, key=_on_arm)


def _on_arm(camera: str) -> bool:
    return "wrist" in camera.lower() or "hand" in camera.lower()


def _control_rate(command: SftCommand, name: str, data: Demonstrations, console: Console) -> float:
    """The rate in Hz at which the demonstrator acted; UserError where it is not the simulator's and nobody says so."""
    said = float(data.source.get("control_hz", data.info["fps"]))  # `collect` knows a fraction too
    rate = said if command.fps is None else command.fps
    if command.fps is None and "control_hz" in data.source:
        console.print(f"{rate:g} actions a second, as {data.source['suite']}", soft_wrap=True)
        return rate
    same = same_rate(rate, PANDA.control_hz)
    if not same and command.fps is None and not data.own_units:
        raise UserError(
            f"{name} has {said:g} frames a second, the simulator {PANDA.control_hz:g} control steps: its motions "
            f"would be too {'fast' if said < PANDA.control_hz else 'slow'} there. Say the true rate with --fps: "
            f"{PANDA.control_hz:g} where info.json is wrong, {said:g} for a robot that acts so often"
        )
    words = f"{rate:g} actions a second"
    if command.fps is not None and not same_rate(rate, said):
        words += f" (--fps; info.json says {said:g})"
    elif data.own_units:
        words += ", by info.json (--fps where it is wrong)" if command.fps is None else ""
    if not data.own_units:
        words += (
            ", as the simulator" if same else f"; the simulator takes {PANDA.control_hz:g}: eval and train will refuse "
        )
        words += "" if same else "this policy"
    console.print(words, soft_wrap=True)
    return rate
