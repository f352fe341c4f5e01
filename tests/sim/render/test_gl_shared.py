"""The one-thread GL renderer draws for many threads what each would draw alone, to the pixel; in a subprocess, see
test_gl."""

from __future__ import annotations

import numpy as np
import pytest

from tests.sim.render.gl_script import BACKENDS, run_script

pytestmark = pytest.mark.process

SCRIPT = """
import gc, os, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
import mujoco, numpy as np
from embodied_rl.sim.render.gl import GlRenderer
from embodied_rl.sim.render import gl_shared
from embodied_rl.sim.render.gl_shared import SharedGlRenderer
backend, scene_file, out_file = sys.argv[1:]
models = [mujoco.MjModel.from_xml_path(scene_file), mujoco.MjModel.from_xml_string(
    open(scene_file).read().replace('rgba=".6 .45 .3 1"', 'rgba=".1 .9 .9 1"'))]
cameras = ("front", "low", "wrist")
rng = np.random.default_rng(0)

def poses(number):
    data = mujoco.MjData(models[number % 2])
    turn = rng.normal(size=4)
    data.qpos[:] = np.concatenate([rng.uniform((.1, -.3, .3), (.4, .2, .6)), turn / np.linalg.norm(turn)])
    mujoco.mj_forward(models[number % 2], data)
    return data.xpos.copy(), data.xmat.copy()

jobs = [(number % 2, *poses(number), (32, 40) if number % 3 else (64, 48)) for number in range(60)]
shared, alone = SharedGlRenderer(backend), GlRenderer(backend)
assert [shared.add_scene(model) for model in models] == [alone.add_scene(model) for model in models]

def draw(renderer, job):
    scene, xpos, xmat, size = job
    out = np.zeros((len(cameras), *size, 3), np.uint8)
    renderer.render(scene, xpos, xmat, cameras, out, (4,) if scene else ())
    return out

with ThreadPoolExecutor(12) as pool:
    together = list(pool.map(lambda job: draw(shared, job), jobs))
apart = [draw(alone, job) for job in jobs]

def fresh(job):
    renderer = GlRenderer(backend)  # that never drew another scene
    for model in models:
        renderer.add_scene(model)
    return draw(renderer, job)

fresh = [fresh(job) for job in jobs[:6]]

many = threading.Barrier(80)  # more frames of one kind at once than one large picture takes

def at_once(number):
    many.wait()
    return draw(shared, jobs[1])

with ThreadPoolExecutor(80) as pool:
    crowd = list(pool.map(at_once, range(80)))
try:
    shared.render(0, np.zeros((3, 3)), np.zeros((3, 9)), cameras, np.zeros((3, 8, 8, 3), np.uint8))
    refused = False
except Exception:
    refused = True
painter = gl_shared._Painter._scene  # what fails in the thread that draws is raised where it was asked for

def broken(self, job):
    raise MemoryError("no room")

gl_shared._Painter._scene = broken
try:
    draw(shared, jobs[0])
    told = ""
except MemoryError as error:
    told = str(error)
gl_shared._Painter._scene = painter
fine = [renderer(backend, images=True) for renderer in (SharedGlRenderer, GlRenderer)]
for renderer in fine:
    renderer.add_scene(models[0])
fine = [draw(renderer, jobs[0]) for renderer in fine]
gc.collect()
if (child := os.fork()) == 0:  # its copy of the renderer has no thread that draws
    try:
        draw(shared, jobs[0])
    except RuntimeError:
        os._exit(7)
    os._exit(1)
forked = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
shared.remove_scene(0)
after = draw(shared, jobs[1])
try:
    draw(shared, jobs[0])
    gone = False
except KeyError:
    gone = True
del shared
gc.collect()
end = time.monotonic() + 900
while any(thread.name == "gl" for thread in threading.enumerate()) and time.monotonic() < end:
    time.sleep(0.01)
ended = not any(thread.name == "gl" for thread in threading.enumerate())
same = [bool((a == b).all()) for a, b in zip(together, apart)]
np.savez(
    out_file, same=same, crowd=[bool((a == apart[1]).all()) for a in crowd], spread=[a.std() for a in apart],
    fresh=[bool((a == b).all()) for a, b in zip(fresh, apart)], different=len({a.tobytes() for a in apart}),
    pictures=(fine[0] == fine[1]).all() and (fine[0] != apart[0]).any(), told=told,
    forked=forked, refused=refused, after=(after == apart[1]).all(), gone=gone, ended=ended,
)
"""


@pytest.fixture(scope="module", params=BACKENDS)
def drawn(request, primitives: str, tmp_path_factory) -> dict[str, np.ndarray]:
    folder = tmp_path_factory.mktemp(request.param)
    scene, out = folder / "scene.xml", folder / "out.npz"
    scene.write_text(primitives)
    run_script(SCRIPT, request.param, scene, out)
    return dict(np.load(out))


def test_every_thread_gets_the_picture_that_it_asked_for(drawn: dict[str, np.ndarray]) -> None:
    assert drawn["same"].all(), np.flatnonzero(~drawn["same"])
    assert drawn["crowd"].all(), np.flatnonzero(~drawn["crowd"])
    assert drawn["different"] == 60
    assert drawn["spread"].min() > 10


def test_scenes_do_not_draw_over_one_another(drawn: dict[str, np.ndarray]) -> None:
    assert drawn["fresh"].all(), np.flatnonzero(~drawn["fresh"])


def test_what_cannot_be_drawn_is_refused_and_the_others_go_on(drawn: dict[str, np.ndarray]) -> None:
    assert drawn["refused"]
    assert drawn["gone"]
    assert drawn["told"] == "no room"
    assert drawn["after"]


def test_pictures_for_people_are_the_same_too(drawn: dict[str, np.ndarray]) -> None:
    assert drawn["pictures"]


def test_in_a_forked_process_it_says_so(drawn: dict[str, np.ndarray]) -> None:
    assert drawn["forked"] == 7


def test_its_thread_ends_with_the_renderer(drawn: dict[str, np.ndarray]) -> None:
    assert drawn["ended"]
