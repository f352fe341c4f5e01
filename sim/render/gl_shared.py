"""The GL renderer for a GPU: one thread owns the only context and draws for all others.

A GPU's driver lets contexts take turns: on an H100 one thread drew two cameras of 64 x 64 in 1.7 ms, and 16 threads
with a context each drew 76 such pairs a second, an eighth of what the one drew alone. Here the threads that ask prepare
what is to be drawn; whatever waits when the owner of the context is free is drawn and copied into one large picture,
which is read back at once: the GPU is waited for once a batch instead of once a frame.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from queue import Empty, SimpleQueue
from typing import Any, Literal

import mujoco
import numpy as np

from embodied_rl.sim.render.gl import MAKING, GlRenderer, Stage, bind, gl_context
from embodied_rl.sim.render.raycast import check_poses
from embodied_rl.sim.render.scene import camera_index
from embodied_rl.types import Array

_LOOK_SECONDS = 1.0
_COLUMNS, _ROWS = 8, 8
_WIDEST = 8192
"""Pixels of a batch's picture in either direction; every GPU can draw so many."""


@dataclass(slots=True)
class _Job:
    """What one thread wants drawn: frames of one scene, as MuJoCo sends them to OpenGL, of height x width pixels."""

    scene: int
    model: mujoco.MjModel
    frames: Sequence[mujoco.MjvScene]
    size: tuple[int, int]
    images: list[Array] = field(default_factory=list)
    done: threading.Event = field(default_factory=threading.Event)
    error: Exception | None = None


class SharedGlRenderer(GlRenderer):
    """Draws what `GlRenderer` draws, in a thread of its own, for as many threads as want it."""

    def __init__(self, backend: Literal["egl", "osmesa"], *, images: bool = False) -> None:
        super().__init__(backend, images=images)
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        painter = _Painter(self._context_class, self._models, self._jobs, images)
        self._painter = threading.Thread(target=painter.work, name="gl", daemon=True)
        self._painter.start()
        weakref.finalize(self, self._jobs.put, None)

    def render(
        self,
        scene: int,
        xpos: Array,
        xmat: Array,
        cameras: tuple[str, ...],
        out: Array,
        site_groups: tuple[int, ...] = (),
    ) -> None:
        """As in GlRenderer."""
        model = self._models[scene]
        check_poses(model, xpos, xmat, cameras, out)
        stage = self._stage(scene)
        stage.place(xpos, xmat)
        frames = [stage.scene(number) for number in range(len(cameras))]
        for frame, camera in zip(frames, cameras, strict=True):
            stage.show(frame, camera_index(model, camera), site_groups)
        job = _Job(scene, model, frames, (out.shape[1], out.shape[2]))
        self._jobs.put(job)
        while not job.done.wait(_LOOK_SECONDS):
            if not self._painter.is_alive():
                raise RuntimeError("the thread that draws is gone: a renderer cannot be used in a forked process")
        if job.error is not None:
            raise job.error
        for image, rendered in zip(out, job.images, strict=True):
            image[:] = rendered

    def _stage(self, scene: int) -> Stage:
        """The calling thread's own."""
        stages: dict[int, Stage] = self._local.__dict__.setdefault("stages", {})
        for gone in [number for number in stages if number not in self._models]:
            del stages[gone]
        if scene not in stages:
            stages[scene] = Stage(self._models[scene], self._images)
        return stages[scene]


class _Painter:
    """The thread that owns the context. models: the renderer's; a scene that is gone from it is freed."""

    def __init__(
        self, context_class: Any, models: Mapping[int, mujoco.MjModel], jobs: SimpleQueue[_Job | None], images: bool
    ) -> None:
        self._context_class = context_class
        self._models = models
        self._jobs = jobs
        self._images = images
        self._context: Any = None
        self._image: _Image | None = None
        self._scenes: dict[int, _Scene] = {}

    def work(self) -> None:
        """Draw until None comes."""
        while (jobs := self._waiting()) is not None:
            try:
                self._draw(jobs)
            except Exception as error:  # noqa: BLE001 - those who asked raise it
                for job in jobs:
                    job.error = error
            for job in jobs:
                job.done.set()
            del jobs, job  # they hold scenes and pictures
        self._scenes.clear()
        if self._context is not None:
            with MAKING:
                self._context.free()

    def _waiting(self) -> list[_Job] | None:
        """Everything that waits, when something does; None at the end."""
        jobs = [self._jobs.get()]
        try:
            while True:
                jobs.append(self._jobs.get_nowait())
        except Empty:
            pass
        return None if None in jobs else [job for job in jobs if job is not None]

    def _draw(self, jobs: list[_Job]) -> None:
        if self._context is None:
            with MAKING:
                context = self._context_class(64, 64)
            context.make_current()
            self._image = _Image()
            self._context = context
        for gone in [number for number in self._scenes if number not in self._models]:
            del self._scenes[gone]
        for size, same in groupby(sorted(jobs, key=_size), _size):
            self._draw_alike(list(same), *size)

    def _draw_alike(self, jobs: list[_Job], height: int, width: int) -> None:
        """Draw frames of one size, as many at once as the large picture takes."""
        assert self._image is not None
        frames = [(self._scene(job), frame) for job in jobs for frame in job.frames]
        most = self._image.resize(height, width, len(frames))
        found: list[Array] = []
        for first in range(0, len(frames), most):
            some = frames[first : first + most]
            for number, (drawn, frame) in enumerate(some):
                self._image.keep(number, drawn.draw(frame, height, width))
            found += self._image.read(len(some))
        for job in jobs:
            job.images, found = found[: len(job.frames)], found[len(job.frames) :]

    def _scene(self, job: _Job) -> _Scene:
        if job.scene not in self._scenes:
            self._scenes[job.scene] = _Scene(job.model, self._images)
        return self._scenes[job.scene]


def _size(job: _Job) -> tuple[int, int]:
    return job.size


class _Scene:
    """A model's textures and meshes on the GPU, and a buffer for one frame.

    All frames are drawn at the same place: elsewhere a driver may round differently, and a picture must not depend on
    what else is drawn.
    """

    def __init__(self, model: mujoco.MjModel, images: bool) -> None:
        self._gl = gl_context(model, images)
        self._size = (0, 0)

    def draw(self, frame: mujoco.MjvScene, height: int, width: int) -> int:
        """Draw into the frame buffer object whose number is returned."""
        if self._size != (height, width):
            mujoco.mjr_resizeOffscreen(width, height, self._gl)
            self._size = height, width
        bind(self._gl)
        mujoco.mjr_render(mujoco.MjrRect(0, 0, width, height), frame, self._gl)
        return self._gl.offFBO


class _Image:
    """The large picture: frames of one size side by side, row by row from the bottom."""

    def __init__(self) -> None:
        from OpenGL import GL  # with the platform that the context class has set

        self._calls: Any = GL
        self._frame = (0, 0)
        self._columns = 0
        self._size = (0, 0)
        self._fbo: int = GL.glGenFramebuffers(1)
        self._buffer: int = GL.glGenRenderbuffers(1)

    def resize(self, height: int, width: int, count: int) -> int:
        """Make room for `count` frames of this size, or as many as it takes; return for how many."""
        calls = self._calls
        self._frame = height, width
        self._columns = max(1, min(_COLUMNS, _WIDEST // width, count))
        rows = max(1, min(_ROWS, _WIDEST // height, -(-count // self._columns)))
        if self._size[0] < rows * height or self._size[1] < self._columns * width:
            self._size = max(self._size[0], rows * height), max(self._size[1], self._columns * width)
            calls.glBindRenderbuffer(calls.GL_RENDERBUFFER, self._buffer)
            calls.glRenderbufferStorage(calls.GL_RENDERBUFFER, calls.GL_RGBA8, self._size[1], self._size[0])
            calls.glBindFramebuffer(calls.GL_FRAMEBUFFER, self._fbo)
            calls.glFramebufferRenderbuffer(
                calls.GL_FRAMEBUFFER, calls.GL_COLOR_ATTACHMENT0, calls.GL_RENDERBUFFER, self._buffer
            )
        return rows * self._columns

    def keep(self, number: int, fbo: int) -> None:
        """Copy the frame that was drawn last, into `fbo`, to place `number`."""
        calls, (height, width) = self._calls, self._frame
        row, column = divmod(number, self._columns)
        calls.glBindFramebuffer(calls.GL_READ_FRAMEBUFFER, fbo)
        calls.glBindFramebuffer(calls.GL_DRAW_FRAMEBUFFER, self._fbo)
        calls.glBlitFramebuffer(
            0,
            0,
            width,
            height,
            column * width,
            row * height,
            (column + 1) * width,
            (row + 1) * height,
            calls.GL_COLOR_BUFFER_BIT,
            calls.GL_NEAREST,
        )

    def read(self, count: int) -> list[Array]:
        """The first `count` frames [height, width, 3]."""
        calls, (height, width), columns = self._calls, self._frame, self._columns
        rows = -(-count // columns)
        large = np.empty((rows * height, columns * width, 3), np.uint8)
        calls.glBindFramebuffer(calls.GL_FRAMEBUFFER, self._fbo)
        calls.glPixelStorei(calls.GL_PACK_ALIGNMENT, 1)
        calls.glReadPixels(0, 0, columns * width, rows * height, calls.GL_RGB, calls.GL_UNSIGNED_BYTE, large)
        tiles = large.reshape(rows, height, columns, width, 3)[:, ::-1]  # GL's first row is the lowest
        return [tiles[number // columns, :, number % columns] for number in range(count)]
