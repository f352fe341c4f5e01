"""The page of `view` in a browser, by viser: the scene, what the policy sees and is about to do, buttons and keys."""

from __future__ import annotations

import io
import queue
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from functools import partial
from typing import Any

import numpy as np
import trimesh
import viser
from PIL import Image
from trimesh.visual import TextureVisuals
from trimesh.visual.material import PBRMaterial
from viser.transforms import SO3

from embodied_rl.errors import UserError
from embodied_rl.jobs.viewer import GRIPPER, Viewer
from embodied_rl.real_robot.deploy.keys import KEYS
from embodied_rl.sim.render.mesh.pack import OPAQUE
from embodied_rl.sim.render.mesh.parts import Part

Ask = Callable[[Viewer], None]
MOVES = {
    "8": ("away from the base", (1.0, 0, 0, 0, 0, 0)),
    "2": ("towards the base", (-1.0, 0, 0, 0, 0, 0)),
    "4": ("left", (0, 1.0, 0, 0, 0, 0)),
    "6": ("right", (0, -1.0, 0, 0, 0, 0)),
    "9": ("up", (0, 0, 1.0, 0, 0, 0)),
    "3": ("down", (0, 0, -1.0, 0, 0, 0)),
    "7": ("turn left", (0, 0, 0, 0, 0, 0.5)),
    "1": ("turn right", (0, 0, 0, 0, 0, -0.5)),
    "5": ("open or close the fingers", (0.0,) * 6),
}
"""Keys that move the hand, as on a numeric keypad; left and right as seen from the base."""
FINGERS = "5"
SERVICES: dict[str, Ask] = {
    "hold": partial(Viewer.play, goes_on=False),
    "resume": Viewer.play,
    "release": Viewer.release,
}
"""What keys of a real arm (`deploy`) do here, by the bridge's services."""
_WAITING = 2
"""Keys that wait: one that is held repeats faster than a slow simulator steps, and must not go on afterwards."""
_CLOSING, _OPENING = (255, 120, 0), (0, 120, 255)
_BEHIND = 1.0
"""Metres from the page's first view to the point that it turns around."""


class Page:
    """Shows a `Viewer`, and keeps what is clicked and pressed until it is asked for.

    Args:
        viewer: Whose tasks there are to choose from.
        host, port: Where to listen.
        cameras: Names of what the policy sees.
        horizons: Control steps of each task.

    Raises:
        UserError: The address cannot be had.
    """

    def __init__(
        self, viewer: Viewer, host: str, port: int, cameras: Sequence[str], horizons: Mapping[str, int]
    ) -> None:
        with redirect_stdout(io.StringIO()):  # viser's own banner
            self._server = _LocalServer(host, port, label="embodied-rl", verbose=False)
        if self._server.get_port() != port:  # viser takes the next free one
            self.close()
            raise UserError(f"cannot listen at {host}, port {port}: name another --port.")
        self.url = f"http://{'127.0.0.1' if host == '0.0.0.0' else f'[{host}]' if ':' in host else host}:{port}"
        self.bodies: dict[int, viser.FrameHandle] = {}
        self.parts: list[tuple[Part, viser.GlbHandle]] = []
        self._asked, self._horizons = queue.SimpleQueue[Ask](), horizons
        self._scene, self._drawn = self._server.scene.add_frame("/scene", show_axes=False), ""
        self._server.gui.configure_theme(show_share_button=False, show_logo=False)
        self._make_controls(viewer, cameras)
        for key, (name, delta) in MOVES.items():
            self._key(key, f"move: {name}", partial(Viewer.move, delta=delta, toggle=key == FINGERS))
        for key, service in KEYS.items():
            if service in SERVICES:
                self._key(key.upper(), service, SERVICES[service])

    @property
    def speed(self) -> float:
        """Times the robot's own."""
        return self._speed.value

    def next(self, seconds: float | None) -> Ask | None:
        """What was asked for first, and not done yet; waits so long (None: for ever). None where there is nothing."""
        try:
            return self._asked.get(timeout=seconds)
        except queue.Empty:
            return None

    def close(self) -> None:
        """Stop listening."""
        with redirect_stdout(io.StringIO()):
            self._server.stop()

    def show(self, viewer: Viewer) -> None:
        """Bring the page up to what `viewer` is now."""
        with self._server.atomic():
            if self._drawn != viewer.spec.task:
                self._draw(viewer)
            positions, quaternions = viewer.poses()
            for body, frame in self.bodies.items():
                frame.position, frame.wxyz = positions[body], quaternions[body]  # sent where it changed
            lit = viewer.lit()
            for part, mesh in self.parts:
                if part.group >= 0:
                    mesh.visible = part.group in lit
            self._show_path(viewer)
            for picture, image in zip(self._pictures, viewer.episode.observation.images[0], strict=True):
                picture.image = image.cpu().numpy()
            self._status.content = self._words(viewer)
            self._play.label = "Pause" if viewer.playing else "Play"
            self._play.disabled = self._step.disabled = viewer.over or viewer.by_hand
            self._release.disabled = not viewer.by_hand

    def _make_controls(self, viewer: Viewer, cameras: Sequence[str]) -> None:
        gui = self._server.gui
        self._status = gui.add_markdown("")
        task = gui.add_dropdown("task", list(viewer.tasks))
        task.on_update(lambda _: self._asked.put(partial(Viewer.choose, task=task.value)))
        self._play = self._button("Play", lambda viewer: viewer.play(not viewer.playing))
        self._step = self._button("Step", _one_step)
        self._button("Reset", Viewer.reset)
        self._button("Next initial state", partial(Viewer.reset, further=1))
        self._speed = gui.add_slider("speed", min=0.1, max=4.0, step=0.1, initial_value=1.0)
        with gui.add_folder("What the policy sees"):
            self._pictures = [
                gui.add_image(np.zeros((8, 8, 3), np.uint8), label=name, format="png") for name in cameras
            ]
        with gui.add_folder("By hand"):
            keys = [f"**{key}** {name}" for key, (name, _) in MOVES.items()]
            keys += [f"**{key.upper()}** {service}" for key, service in KEYS.items() if service in SERVICES]
            gui.add_markdown(f"A digit takes the arm over, and is one control step. {', '.join(keys)}.")
            self._release = self._button("Give the arm back", Viewer.release)

    def _button(self, label: str, ask: Ask) -> viser.GuiButtonHandle:
        button = self._server.gui.add_button(label)
        button.on_click(lambda _: self._asked.put(ask))
        return button

    def _key(self, key: Any, label: str, ask: Ask) -> None:
        def pressed(_: object) -> None:
            if self._asked.qsize() < _WAITING:
                self._asked.put(ask)

        self._server.gui.add_command(label, hotkey=key).on_trigger(pressed)

    def _draw(self, viewer: Viewer) -> None:
        """Take the last scene away, and draw the task's own."""
        scene = self._server.scene
        self._scene.remove()
        self._scene, self._drawn = scene.add_frame("/scene", show_axes=False), viewer.spec.task
        self.bodies, self.parts = {}, []
        for number, part in enumerate(viewer.parts()):
            name = f"/scene/{part.body}"
            if part.body not in self.bodies:
                self.bodies[part.body] = scene.add_frame(name, show_axes=False)
            turn = SO3.from_matrix(part.rotation).wxyz
            mesh = scene.add_mesh_trimesh(f"{name}/{number}", triangles(part), wxyz=turn, position=part.position)
            self.parts.append((part, mesh))
        hand = viewer.path()[0]
        self._server.initial_camera.look_at = hand
        self._server.initial_camera.position = hand + np.array([_BEHIND, 0, _BEHIND / 2])

    def _show_path(self, viewer: Viewer) -> None:
        points, closes = viewer.path(), viewer.episode.chunk.cpu().numpy()[:, GRIPPER, None] > 0
        ends = np.stack([points[:-1], points[1:]], axis=1)
        color = np.where(closes, _CLOSING, _OPENING).astype(np.uint8)
        if len(ends) and not viewer.over:
            self._server.scene.add_line_segments("/path", ends, np.stack([color, color], axis=1), thickness=0.004)
        else:
            self._server.scene.remove_by_name("/path")

    def _words(self, viewer: Viewer) -> str:
        result, spec = viewer.episode.result, viewer.spec
        state = "you move the arm" if viewer.by_hand else "playing" if viewer.playing else "standing still"
        if viewer.over:
            won = "success, with a person's help" if result.helped_success else "failure"
            state = viewer.problem or ("success" if result.success else won)
        steps = f"control step {result.num_steps} of {self._horizons[spec.task]}, decision {result.num_decisions}"
        words = viewer.episode.observation.instruction[0]
        return f"**{words}**\n\ninitial state {spec.init_state}, {steps}\n\n{state}"


class _LocalServer(viser.ViserServer):
    """Viser's server without its tunnel to a public address, which any page that reaches it could ask for."""

    def request_share_url(self, verbose: bool = True) -> str | None:
        """There is none."""
        return None


def triangles(part: Part) -> trimesh.Trimesh:
    """`part` in glTF's terms: colours are linear, and a roughness that does not shine."""
    *shown, alpha = part.color
    material = PBRMaterial(
        baseColorFactor=[*(channel**2.2 for channel in shown), alpha],
        baseColorTexture=None if part.texture is None else Image.fromarray(part.texture),
        metallicFactor=0.0,
        roughnessFactor=0.8,
        doubleSided=True,
        alphaMode="OPAQUE" if alpha >= OPAQUE else "BLEND",
    )
    coords = (
        None if part.coords is None else part.coords * (1, -1) + (0, 1)
    )  # trimesh counts a texture's rows from below
    visual = TextureVisuals(uv=coords, material=material)
    return trimesh.Trimesh(part.points, part.faces, vertex_normals=part.normals, visual=visual, process=False)


def _one_step(viewer: Viewer) -> None:
    viewer.play(False)
    viewer.step()
