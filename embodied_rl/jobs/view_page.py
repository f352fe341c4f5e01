"""The page of `view` in a browser, by viser: the scene, what the policy sees and is about to do, buttons and keys."""

from __future__ import annotations

import queue
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import trimesh
import viser
from PIL import Image
from trimesh.visual import TextureVisuals
from trimesh.visual.material import PBRMaterial

from embodied_rl.errors import UserError
from embodied_rl.jobs.viewer import GRIPPER, Viewer
from embodied_rl.real_robot.deploy.keys import KEYS
from embodied_rl.sim.render.mesh.pack import OPAQUE
from embodied_rl.sim.render.mesh.parts import Part
from embodied_rl.utils.words import sentence

if TYPE_CHECKING:
    from embodied_rl.types import EpisodeSpec

Ask = Callable[[Viewer], None]
SERVICES: dict[str, Ask] = {"hold": Viewer.pause, "resume": Viewer.play, "release": Viewer.release}
"""What the keys of a real arm (`deploy`) do here, by the bridge's services."""
MOVES: dict[str, tuple[str, tuple[float, ...]]] = {
    "8": ("away from the base", (1, 0, 0, 0, 0, 0)),
    "2": ("towards the base", (-1, 0, 0, 0, 0, 0)),
    "4": ("left", (0, 1, 0, 0, 0, 0)),
    "6": ("right", (0, -1, 0, 0, 0, 0)),
    "9": ("up", (0, 0, 1, 0, 0, 0)),
    "3": ("down", (0, 0, -1, 0, 0, 0)),
    "7": ("turn left", (0, 0, 0, 0, 0, 0.5)),
    "1": ("turn right", (0, 0, 0, 0, 0, -0.5)),
}
"""Keys that move the hand, as on a numeric keypad; left and right as seen from the base."""
FINGERS = "5"
_WAITING = 2
"""Keys that wait: a key that is held repeats faster than a slow simulator steps, and must not go on afterwards."""
_CLOSING, _OPENING = (255, 120, 0), (0, 120, 255)


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
        self._server = _LocalServer(host, port, label="embodied-rl", verbose=False)
        if self._server.get_port() != port:  # viser takes the next free one
            self.close()
            raise UserError(f"cannot listen at {host}, port {port}: name another --port.")
        self._server.gui.configure_theme(show_share_button=False, show_logo=False)
        shown = "127.0.0.1" if host == "0.0.0.0" else f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{port}"
        self._asked = queue.SimpleQueue[Ask]()
        self._horizons = horizons
        self._bodies: dict[int, viser.FrameHandle] = {}
        self._lamps: list[tuple[int, viser.GlbHandle]] = []
        self._scene = self._server.scene.add_frame("/scene", show_axes=False)
        self._drawn: str | None = None
        self._make_controls(viewer, cameras)
        self._make_keys()

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
        self._server.stop()

    def show(self, viewer: Viewer) -> None:
        """Bring the page up to what `viewer` is now."""
        with self._server.atomic():
            if self._drawn != viewer.spec.task:
                self._draw(viewer)
            positions, quaternions = viewer.poses()
            for body, frame in self._bodies.items():
                if (frame.position != positions[body]).any() or (frame.wxyz != quaternions[body]).any():
                    frame.position, frame.wxyz = positions[body], quaternions[body]
            lit = viewer.lit() if self._lamps else ()
            for group, lamp in self._lamps:
                lamp.visible = group in lit
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
        names = list(viewer.tasks)
        task = gui.add_dropdown("task", names, sentence(viewer.spec.task))
        state = gui.add_dropdown("initial state", _states(viewer.tasks[task.value]))
        task.on_update(lambda _: self._choose_task(viewer.tasks[task.value], state))
        state.on_update(lambda _: self._asked.put(partial(_choose, label=task.value, state=state.value)))
        self._play, self._step = gui.add_button("Play"), gui.add_button("Step")
        self._play.on_click(lambda _: self._asked.put(_toggle))
        self._step.on_click(lambda _: self._asked.put(_one_step))
        gui.add_button("Reset").on_click(lambda _: self._asked.put(Viewer.reset))
        self._speed = gui.add_slider("speed", min=0.1, max=4.0, step=0.1, initial_value=1.0)
        with gui.add_folder("What the policy sees"):
            self._pictures = [
                gui.add_image(np.zeros((8, 8, 3), np.uint8), label=name, format="png") for name in cameras
            ]
        with gui.add_folder("By hand"):
            gui.add_markdown(_help())
            self._release = gui.add_button("Give the arm back", disabled=True)
            self._release.on_click(lambda _: self._asked.put(Viewer.release))

    def _choose_task(self, specs: Sequence[EpisodeSpec], state: Any) -> None:
        """The other task's states, the first of which is begun."""
        state.options = _states(specs)
        self._asked.put(partial(Viewer.choose, spec=specs[0]))

    def _make_keys(self) -> None:
        for key, (name, delta) in MOVES.items():
            self._key(key, f"move: {name}", partial(Viewer.move, delta=np.array(delta)))
        self._key(FINGERS, "open or close the fingers", partial(Viewer.move, delta=np.zeros(6), toggle=True))
        for key, service in KEYS.items():
            if service in SERVICES:
                self._key(key.upper(), service, SERVICES[service])

    def _key(self, key: Any, label: str, ask: Ask) -> None:
        def pressed(_: object) -> None:
            if self._asked.qsize() < _WAITING:
                self._asked.put(ask)

        self._server.gui.add_command(label, hotkey=key).on_trigger(pressed)

    def _draw(self, viewer: Viewer) -> None:
        """Take the last scene away, and draw the task's own."""
        scene = self._server.scene
        self._scene.remove()
        self._scene, self._bodies, self._lamps = scene.add_frame("/scene", show_axes=False), {}, []
        positions, quaternions = viewer.poses()
        for number, part in enumerate(viewer.parts()):
            name = f"/scene/{part.body}"
            if part.body not in self._bodies:
                place = {"position": positions[part.body], "wxyz": quaternions[part.body]}
                self._bodies[part.body] = scene.add_frame(name, show_axes=False, **place)
            turn = viser.transforms.SO3.from_matrix(part.rotation).wxyz
            mesh = scene.add_mesh_trimesh(f"{name}/{number}", triangles(part), wxyz=turn, position=part.position)
            if part.group >= 0:
                self._lamps.append((part.group, mesh))
        camera = self._server.initial_camera
        camera.position, camera.look_at = viewer.camera()
        self._drawn = viewer.spec.task

    def _show_path(self, viewer: Viewer) -> None:
        chunk, points = viewer.episode.chunk.cpu().numpy(), viewer.path()
        grip = np.where(chunk[:, GRIPPER, None] > 0, _CLOSING, _OPENING).astype(np.uint8)
        segments, colors = np.stack([points[:-1], points[1:]], axis=1), np.stack([grip, grip], axis=1)
        visible = len(chunk) > 0 and not viewer.over
        self._server.scene.add_line_segments(
            "/path", segments if visible else np.zeros((1, 2, 3)), colors if visible else np.zeros((1, 2, 3), np.uint8),
            thickness=0.004, visible=visible,
        )  # fmt: skip

    def _words(self, viewer: Viewer) -> str:
        result, spec = viewer.episode.result, viewer.spec
        who = "you move the arm" if viewer.by_hand else "playing" if viewer.playing else "standing still"
        if viewer.over:
            won = "success, with your help" if result.helped_success else "success" if result.success else "failure"
            who = viewer.problem or won
        lines = (
            f"**{viewer.episode.observation.instruction[0]}**",
            f"control step {result.num_steps} of {self._horizons[spec.task]}, decision {result.num_decisions}",
            who,
        )
        return "\n\n".join(lines)


class _LocalServer(viser.ViserServer):
    """Viser's server without its tunnel to a public address, which any page that reaches it could ask for."""

    def request_share_url(self, verbose: bool = True) -> str | None:
        """There is none."""
        return None


def triangles(part: Part) -> trimesh.Trimesh:
    """`part` as a viewer of glTF draws it, whose colours are linear."""
    red, green, blue, alpha = part.color
    coords = None if part.coords is None else part.coords * (1, -1) + (0, 1)  # trimesh counts rows from below
    material = PBRMaterial(
        baseColorFactor=[*(channel**2.2 for channel in (red, green, blue)), alpha],
        baseColorTexture=None if part.texture is None else Image.fromarray(part.texture),
        metallicFactor=0.0,
        roughnessFactor=0.8,
        doubleSided=True,
        alphaMode="OPAQUE" if alpha >= OPAQUE else "BLEND",
    )
    visual = TextureVisuals(uv=coords, material=material)
    return trimesh.Trimesh(part.points, part.faces, vertex_normals=part.normals, visual=visual, process=False)


def _states(specs: Sequence[EpisodeSpec]) -> list[str]:
    return [str(spec.init_state) for spec in specs]


def _choose(viewer: Viewer, label: str, state: str) -> None:
    viewer.choose(next(spec for spec in viewer.tasks[label] if str(spec.init_state) == state))


def _toggle(viewer: Viewer) -> None:
    if viewer.playing:
        viewer.pause()
    else:
        viewer.play()


def _one_step(viewer: Viewer) -> None:
    viewer.pause()
    viewer.step()


def _help() -> str:
    """The keys, in words."""
    rows = [f"**{key}** {name}" for key, (name, _) in MOVES.items()]
    rows += [f"**{FINGERS}** open or close the fingers"]
    rows += [f"**{key.upper()}** {service}" for key, service in KEYS.items() if service in SERVICES]
    first = "Each of these keys takes the arm over, and is one control step:"
    return f"{first}\n\n{', '.join(rows)}.\n\nThe line is where the hand goes in this chunk: orange closes the fingers."
