"""LIBERO's official tasks, as `embodied-rl assets install libero` exported them; see docs/libero.md.

task = load_task(root, "libero_goal/turn_on_the_stove")
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import mujoco

from embodied_rl.errors import UserError, suggest
from embodied_rl.sim.eras import CURRENT, Era, EraChoice, choose_era
from embodied_rl.sim.libero.exported import (
    BlobStore,
    exported_path,
    fingerprint,
    install_command,
    installed,
    read_exported,
    unpack_array,
    unpack_model,
)
from embodied_rl.sim.libero.premise_files import read_premises
from embodied_rl.sim.libero.premises import Premises
from embodied_rl.sim.mujoco.era import mark, require
from embodied_rl.sim.mujoco.indicators import FIRST_GROUP
from embodied_rl.sim.mujoco.task import In, Indicator, JointRange, MujocoTask, On, OnSite, Predicate
from embodied_rl.utils.suites import LAYOUT_SUITES, OFFICIAL_SUITES, PRO_SUITES, base_suite

HORIZONS = {"libero_spatial": 220, "libero_object": 280, "libero_goal": 300, "libero_10": 520, "libero_90": 400}
"""Control steps of an episode after its settle steps, as OpenVLA's evaluation counts them; LIBERO-PRO's suites have
those of the suites that they vary."""
EVALUATION_STATES = 50
"""The official initial states of a task come first; LIBERO-plus' layouts have one."""
_HIDDEN_GROUP = 3
_PREDICATES: dict[str, type[Predicate]] = {kind.__name__: kind for kind in (On, OnSite, In, JointRange)}


@dataclass(frozen=True, slots=True)
class FixturePose:
    """Where a fixture stands: its root body, pos float [3] (m), quat [4] (wxyz), in the body's parent frame."""

    body: str
    pos: tuple[float, ...]
    quat: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class CameraPose:
    """pos [3] (m) and quat [4] (wxyz) relative to `body`; vertical field of view in degrees."""

    body: str
    pos: tuple[float, ...]
    quat: tuple[float, ...]
    fovy: float


@dataclass(frozen=True, kw_only=True)
class LiberoTask(MujocoTask):
    """An official task, as its suite's benchmark has it.

    Args:
        index: its number in the suite, in the benchmark's task order 0.
        instruction: the sentence that the benchmark gives to policies.
        bddl: text of the task file.
        bddl_language: the sentence in that file, which sometimes differs from `instruction`.
        init_states: float64 [S, 1 + nq + nv]; rows 0 to 49 are the official evaluation states.
        heldout_states: rows 0 to 49.
        train_states: the other rows, without `left_out`. `dataclasses.replace(task, train_states=range(50))` trains on
            the evaluated ones, as RLinf and SimpleVLA-RL do.
        max_episode_steps: control steps after the settle steps, as OpenVLA's evaluation counts them.
        fixtures: by name, as drawn by `env.seed(0)` and the first reset of the official environment.
        cameras: by name, relative to their body.
        gripper: fingers and their speed.
        start: state of controller and solver after the official reset.
        indicators: sites that are drawn only while a joint is in range, such as the stove's burner.
        approximate: files that have stand-ins.
        fingerprint: SHA-256 of the exported task.
        left_out: rows that are not among `train_states` because nobody can solve them; None: nobody looked yet.
    """

    index: int
    bddl: str
    bddl_language: str
    fixtures: Mapping[str, FixturePose]
    cameras: Mapping[str, CameraPose]
    gripper: Mapping[str, Any]
    approximate: tuple[str, ...]
    fingerprint: str
    left_out: tuple[int, ...] | None


def suites() -> tuple[str, ...]:
    """LIBERO's suites."""
    return OFFICIAL_SUITES


def tasks(root: Path, suite: str) -> list[str]:
    """Full names of the suite's installed tasks, in the benchmark's order. UserError when none is, or no such suite."""
    if suite not in (*OFFICIAL_SUITES, *PRO_SUITES):
        raise UserError(f"unknown LIBERO suite '{suite}'.{suggest(suite, (*OFFICIAL_SUITES, *PRO_SUITES))}")
    names = [name for name in installed(root) if name.startswith(f"{suite}/")]
    if not names:
        raise UserError(f"suite '{suite}' is not installed in {root}; run: {install_command(suite)}")
    return sorted(names, key=lambda name: read_exported(root, name)["index"])


def load_suite(root: Path, suite: str, era: EraChoice = CURRENT) -> list[LiberoTask]:
    """Every installed task of a suite, in the benchmark's order."""
    return [load_task(root, name, era) for name in tasks(root, suite)]


def tasks_fingerprint(root: Path, names: Sequence[str]) -> str:
    """One SHA-256 over these tasks as they were exported, whatever their order: what a score must be stamped with."""
    each = sorted(fingerprint(read_exported(root, name)) for name in names)
    return hashlib.sha256("\n".join(each).encode()).hexdigest()


def load_task(root: Path, name: str, era: EraChoice = CURRENT) -> LiberoTask:
    """The task 'suite/short_name'; its models are read when they are built.

    era: whose contacts and texture colours they have; see docs/results/libero_fidelity.md.
    UserError when it is not installed, damaged, or made by another MuJoCo version, or there is no such era here.
    """
    era = choose_era(era, name.partition("/")[0], official=True)
    if era != CURRENT:
        require()
    exported = read_exported(root, name)
    try:
        task = _task(root, exported, era)
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"{exported_path(root, name)} is damaged ({error!r}); remove it and run: {install_command(name)}"
        ) from None
    premises = read_premises(root, task.fingerprint, era)
    return task if premises is None else leave_out(task, premises)


def leave_out(task: LiberoTask, premises: Premises) -> LiberoTask:
    """The task without the training states that nobody can solve. The official evaluation states all stay."""
    stay = set(task.heldout_states)
    train = [row for row in task.train_states if row in stay or row not in premises.unsolvable]
    lost = {*(task.left_out or ()), *task.train_states} - set(train)
    return replace(task, train_states=tuple(train), left_out=tuple(sorted(lost)))


def _task(root: Path, exported: dict[str, Any], era: Era) -> LiberoTask:
    if exported["mujoco"] != mujoco.__version__:
        raise UserError(
            f"task '{exported['name']}' was exported with mujoco {exported['mujoco']}, this is {mujoco.__version__}; "
            f"run: {install_command(exported['name'])}"
        )
    store = BlobStore(root, exported["name"])
    states = unpack_array(store, exported["init_states"])
    suite = exported["name"].partition("/")[0]
    evaluated = 1 if suite in LAYOUT_SUITES else EVALUATION_STATES
    if len(states) < evaluated:
        raise ValueError(f"{len(states)} initial states instead of {evaluated}")
    return LiberoTask(
        name=exported["name"],
        suite=suite,
        instruction=exported["instruction"],
        max_episode_steps=HORIZONS[base_suite(suite)],
        goal=tuple(_predicate(fields) for fields in exported["goal"]),
        init_states=states,
        train_states=range(evaluated, len(states)),
        heldout_states=range(evaluated),
        build_physics=partial(_load_physics, root, exported["name"], tuple(exported["physics"]), era),
        build_visual=partial(
            _load_visual,
            root,
            exported["name"],
            tuple(exported["visual"]),
            tuple(each["site"] for each in exported["indicators"]),
            era,
        ),
        index=exported["index"],
        bddl=exported["bddl"],
        bddl_language=exported["bddl_language"],
        fixtures={key: FixturePose(**_tuples(fields)) for key, fields in exported["fixtures"].items()},
        cameras={key: CameraPose(**_tuples(fields)) for key, fields in exported["cameras"].items()},
        gripper=exported["gripper"],
        start={key: unpack_array(store, packed) for key, packed in exported["start"].items()},
        indicators=tuple(
            Indicator(each["site"], JointRange(**_tuples(each["when"]))) for each in exported["indicators"]
        ),
        approximate=tuple(exported["approximate"]),
        fingerprint=fingerprint(exported),
        left_out=None,
        era=era,
    )


def _load_model(root: Path, name: str, pieces: tuple[str, ...]) -> mujoco.MjModel:
    binary = unpack_model(BlobStore(root, name), pieces)
    try:
        return mujoco.MjModel.from_binary_path("task.mjb", {"task.mjb": binary})
    except ValueError as error:
        raise UserError(
            f"MuJoCo {mujoco.__version__} can't read a model in {root} ({error}); run: {install_command(name)}"
        ) from None


def _load_physics(root: Path, name: str, pieces: tuple[str, ...], era: Era) -> mujoco.MjModel:
    return mark(_load_model(root, name, pieces), era)


def _load_visual(
    root: Path, name: str, pieces: tuple[str, ...], indicators: tuple[str, ...], era: Era
) -> mujoco.MjModel:
    """The full scene, with collision shapes (group 0) in a group that is not drawn: robosuite hides them too.

    An indicator's site is opaque, in its own group, and so is drawn when the renderer is told. MuJoCo before 3.3.3 took
    no notice of a PNG's sRGB chunk, so an older era's textures all have linear colours.
    """
    model = mark(_load_model(root, name, pieces), era)
    if era != CURRENT:
        model.tex_colorspace[:] = mujoco.mjtColorSpace.mjCOLORSPACE_LINEAR
    model.geom_group[model.geom_group == 0] = _HIDDEN_GROUP
    for number, name in enumerate(indicators):
        site = model.site(name).id
        model.site_group[site], model.site_rgba[site, 3] = FIRST_GROUP + number, 1.0
    return model


def _predicate(fields: Mapping[str, Any]) -> Predicate:
    rest = {key: value for key, value in fields.items() if key != "kind"}
    return _PREDICATES[fields["kind"]](**_tuples(rest))


def _tuples(fields: Mapping[str, Any]) -> dict[str, Any]:
    """JSON has lists where the dataclasses have tuples."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()}
