"""Worlds of one model that step together: MuJoCo Warp's Data, the controller's state, and a CUDA graph of a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import mujoco
import numpy as np
import torch
import warp as wp

from embodied_rl.errors import UserError
from embodied_rl.sim.mujoco.kernel import SUBSTEPS, Robot
from embodied_rl.sim.warp import kernels  # before mujoco_warp: it keeps Warp quiet
from embodied_rl.types import Array

import mujoco_warp as mjw  # isort: skip

_SEEN_BEFORE, _FINGERS_BEFORE = 23, 24  # as `sim.mujoco.kernel`: the camera and the arm see substep 24, the fingers 25
_SOLVER_CAPS = int(mjw.OverflowType.ITERATIONS | mjw.OverflowType.LS_ITERATIONS)
_CONTACTS = int(mjw.OverflowType.BROADPHASE | mjw.OverflowType.NARROWPHASE | mjw.OverflowType.CCD)
_ROWS = int(mjw.OverflowType.NEFC | mjw.OverflowType.NJMAX_NNZ)
_TOO_FAR = 1e10
"""mjMAXVAL: MuJoCo takes larger positions and velocities for a divergence."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How worlds are stepped.

    Args:
        device: torch's name, such as 'cpu' or 'cuda:0'.
        graph: capture a control step as a CUDA graph.
        deterministic: the same states bit for bit in every run, on a GPU at some cost; a CPU always repeats.
    """

    device: str
    graph: bool
    deterministic: bool


@dataclass(frozen=True, slots=True)
class Sizes:
    """Room for contacts and constraint rows of a world; contacts are one pool over all worlds of a batch.

    Args:
        contacts: nconmax.
        rows: njmax.
    """

    contacts: int
    rows: int

    def grown(self, overflow: int) -> Sizes:
        """Twice the room that ran out, by the bits of mujoco_warp.OverflowType."""
        sizes = replace(self, contacts=2 * self.contacts) if overflow & _CONTACTS else self
        return replace(sizes, rows=2 * sizes.rows) if overflow & _ROWS else sizes


TABLETOP_SIZES = Sizes(contacts=32, rows=96)
"""The scripted expert needs at most 15 contacts and 53 rows on these tasks."""
LIBERO_SIZES = Sizes(contacts=288, rows=896)
"""The official demonstrations need at most 228 contacts and 693 rows."""


def wp_device(device: str) -> wp.Device:
    """Warp's device for torch's name."""
    return wp.get_device(device if device != "cuda" else "cuda:0")


def put_arm(robot: Robot, model: mujoco.MjModel, device: str) -> Any:
    """The robot's addresses and constants on the device: `kernels.Arm`."""
    place = wp_device(device)

    def ints(values: Array) -> wp.array:
        return wp.array(np.asarray(values, np.int32), dtype=int, device=place)

    def floats(values: Array) -> wp.array:
        return wp.array(np.asarray(values, np.float32), dtype=float, device=place)

    arm, gains = kernels.Arm(), robot.gains
    arm.site, arm.hand = robot.site, robot.hand
    arm.root = int(model.body_rootid[model.site_bodyid[robot.site]])
    arm.qpos, arm.dof, arm.motor = ints(robot.qpos), ints(robot.dof), ints(robot.motor)
    arm.finger_qpos, arm.finger_motor, arm.mass = ints(robot.finger_qpos), ints(robot.finger_motor), ints(robot.mass)
    arm.low, arm.high = floats(robot.low), floats(robot.high)
    arm.finger_middle, arm.finger_half = floats(robot.finger_middle), floats(robot.finger_half)
    arm.kp, arm.kd, arm.null_kp, arm.null_kd = gains.kp, gains.kd, gains.null_kp, gains.null_kd
    arm.position_scale, arm.rotation_scale = gains.position_scale, gains.rotation_scale
    arm.grip_speed = gains.grip_speed
    return arm


class Columns:
    """Where the parts of a world's state are in a row of float32 numbers: state, controller, what is seen."""

    def __init__(self, model: mujoco.MjModel) -> None:
        widths = {
            "qpos": model.nq,
            "qvel": model.nv,
            "warm": model.nv,
            "control": kernels.CONTROL_WIDTH,
            "seen": kernels.SEEN_QPOS + model.nq,
            "stale": kernels.STALE_WIDTH,
        }
        ends = np.cumsum(list(widths.values())).tolist()
        self.width = ends[-1]
        self.parts = {name: slice(end - widths[name], end) for name, end in zip(widths, ends, strict=True)}

    def __getitem__(self, name: str) -> slice:
        return self.parts[name]


class Batch:
    """Room for `worlds` worlds of one model; `load` fills it, `control_step` moves all of them.

    Args:
        host: the model, on the CPU.
        model: the same for MuJoCo Warp, from `put_model`.
        robot: where the robot is in it.
    """

    def __init__(
        self, host: mujoco.MjModel, model: mjw.Model, robot: Robot, worlds: int, sizes: Sizes, settings: Settings
    ) -> None:
        self.worlds, self.sizes = worlds, sizes
        self._settings, self._device = settings, wp_device(settings.device)
        self._columns = Columns(host)
        self._arm = put_arm(robot, host, settings.device)
        self._graph: wp.Graph | None = None
        self._warm = False
        with wp.ScopedDevice(self._device):
            self._model = model
            self._data = mjw.make_data(host, nworld=worlds, nconmax=sizes.contacts, njmax=sizes.rows)
            self._action = wp.zeros((worlds, 7), dtype=float)
            self._control = wp.zeros((worlds, kernels.CONTROL_WIDTH), dtype=float)
            self._seen = wp.zeros((worlds, kernels.SEEN_QPOS + host.nq), dtype=float)
            self._stale = wp.zeros((worlds, kernels.STALE_WIDTH), dtype=float)
        wp.synchronize_device(self._device)
        data = self._data
        self.action = wp.to_torch(self._action)
        """float32 [W, 7] in [-1, 1], of the next control step."""
        self._state = {
            "qpos": wp.to_torch(data.qpos),
            "qvel": wp.to_torch(data.qvel),
            "warm": wp.to_torch(data.qacc_warmstart),
            "control": wp.to_torch(self._control),
            "seen": wp.to_torch(self._seen),
            "stale": wp.to_torch(self._stale),
        }
        self.qpos = self._state["qpos"]
        self.xpos, self.xmat = wp.to_torch(data.xpos), wp.to_torch(data.xmat).flatten(2)
        self.site_xpos, self.site_xmat = wp.to_torch(data.site_xpos), wp.to_torch(data.site_xmat).flatten(2)
        self.contact_geoms, self.contact_world = wp.to_torch(data.contact.geom), wp.to_torch(data.contact.worldid)
        self.num_contacts = wp.to_torch(data.nacon)
        self._overflow = wp.to_torch(data.overflow)

    def load(self, rows: torch.Tensor) -> None:
        """Put the first worlds into the states `rows`, float32 [N, columns]."""
        for name, part in self._state.items():
            part[: len(rows)] = rows[:, self._columns[name]]

    def read(self, count: int) -> torch.Tensor:
        """The states of the first worlds, float32 [count, columns]."""
        return torch.cat([part[:count] for part in self._state.values()], dim=1)

    def control_step(self) -> None:
        """25 substeps of every world: step1, controller, step2; then nobody is stale any more."""
        self._overflow.zero_()
        stream = None if self._device.is_cpu else wp.stream_from_torch(torch.cuda.current_stream(self._settings.device))
        with wp.ScopedDevice(self._device), wp.ScopedStream(stream):
            if not (self._settings.graph and self._warm):
                self._launch()  # also where a graph follows: it loads the modules, which a capture cannot
                self._warm = True
            else:
                self._graph = self._graph or self._capture()
                wp.capture_launch(self._graph)
        self._state["stale"][:, 0] = 0.0

    def broken(self) -> torch.Tensor:
        """Worlds whose last control step diverged or ran out of buffers: bool [W]."""
        state = torch.cat([self._state["qpos"], self._state["qvel"]], dim=1)
        sound = (state.abs() < _TOO_FAR).all(dim=1)  # NaN is not less than anything
        return ~sound | ((self._overflow & ~_SOLVER_CAPS) != 0)

    def overflow(self) -> torch.Tensor:
        """Bits of mujoco_warp.OverflowType by world since the step began, without those of solver caps: int32 [W]."""
        return self._overflow & ~_SOLVER_CAPS

    def _launch(self) -> None:
        model, data, arm, worlds = self._model, self._data, self._arm, self.worlds
        measured = [data.qpos, data.qvel, data.M, data.qfrc_bias, data.site_xpos, data.site_xmat]
        measured += [data.cdof, data.subtree_com]
        for substep in range(SUBSTEPS):
            mjw.step1(model, data)
            if substep == _SEEN_BEFORE:
                wp.launch(
                    kernels.see_bodies, worlds, [arm, data.qpos, data.site_xpos, data.xquat], outputs=[self._seen]
                )
            if substep == _FINGERS_BEFORE:
                wp.launch(kernels.see_fingers, worlds, [arm, data.qpos], outputs=[self._seen])
            wp.launch(
                kernels.control_arm,
                worlds,
                [int(substep == 0), arm, self._action, self._stale, *measured],
                outputs=[self._control, data.ctrl],
            )
            mjw.step2(model, data)

    def _capture(self) -> wp.Graph:
        try:
            # not on torch's stream: CUDA's default one can't be captured
            with wp.ScopedStream(wp.Stream(self._device)), wp.ScopedCapture(self._device) as capture:
                self._launch()
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[0]
            raise UserError(
                f"a control step cannot be captured as a CUDA graph ({reason}); open with graph=False"
            ) from error
        assert capture.graph is not None
        return capture.graph


def put_model(host: mujoco.MjModel, settings: Settings, batch_sizes: dict[str, int] | None = None) -> mjw.Model:
    """MuJoCo Warp's model; batch_sizes: fields that differ from world to world. UserError for what it lacks."""
    device = wp_device(settings.device)
    with wp.ScopedDevice(device):
        try:
            model = mjw.put_model(host, batch_sizes)
        except (NotImplementedError, ValueError) as error:
            raise UserError(f"MuJoCo Warp cannot simulate this scene: {error}") from error
    model.opt.warn_overflow = 0
    if settings.deterministic and not device.is_cpu:
        model.opt.deterministic = mjw.DeterminismType.ALL
    return model


def field_views(model: mjw.Model, names: Sequence[str]) -> dict[str, torch.Tensor]:
    """Fields of a model that was put with a batch size for each, as tensors [W, ...] that share their memory."""
    return {name: wp.to_torch(getattr(model, name)) for name in names}


def capacity(count: int, most: int) -> int:
    """Worlds of the batch for `count` envs out of `most`: most divided by a power of 4, so that few sizes are built."""
    size = most
    while -(-size // 4) >= count and size > 1:
        size = -(-size // 4)
    return size


def to_rows(columns: Columns, parts: Sequence[tuple[str, Array]]) -> Array:
    """One state row from its parts, float32 [columns]; parts that are not given are zero."""
    row = np.zeros(columns.width, np.float32)
    for name, values in parts:
        row[columns[name]] = values
    return row
