"""The episode that a person looks at: the evaluation's own, until a hand is laid on it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from embodied_rl.config.env import MujocoConfig, one_env
from embodied_rl.evaluation.evaluate import run_once
from embodied_rl.factory.suite_env import SuiteEnv
from embodied_rl.jobs.eval_request import BenchmarkCommand, resolved
from embodied_rl.jobs.evaluation_setup import evaluation_env, make_plan, prepare
from embodied_rl.jobs.view import serve
from embodied_rl.jobs.viewer import Viewer
from embodied_rl.policy import ActMode
from embodied_rl.sim.mujoco.env import GRIP_SITE
from embodied_rl.types import Array, EpisodeSpec

TASKS = ("open_the_drawer_of_the_cabinet", "put_the_bowl_on_the_plate")
UP = (0.0, 0.0, 1.0, 0.0, 0.0, 0.0)
COMMAND = BenchmarkCommand(suite="tabletop_goal", tasks=TASKS, at_end=False, env=one_env(MujocoConfig()))


@pytest.fixture(scope="module")
def opened() -> Iterator[tuple[SuiteEnv, Any, list[EpisodeSpec]]]:
    """Env, policy and episodes of an evaluation of the policy in the package."""
    command = resolved("tabletop", COMMAND, COMMAND.suite)
    plan = make_plan("tabletop", command, Console(quiet=True))
    ready = prepare(plan, command)
    with evaluation_env(plan, ready.policy, ready.renderer) as env:
        yield env, ready.policy, plan.specs


@pytest.fixture
def viewer(opened: tuple[SuiteEnv, Any, list[EpisodeSpec]]) -> Viewer:
    return Viewer(*opened, "greedy")


def hand(env: SuiteEnv) -> Array:
    return env.mujoco.data(0).site(GRIP_SITE).xpos.copy()


@pytest.mark.parametrize("mode", ["greedy", "sample"])
def test_nobody_takes_over_then_it_is_the_evaluations_own(
    opened: tuple[SuiteEnv, Any, list[EpisodeSpec]], mode: ActMode
) -> None:
    env, policy, specs = opened
    spec = specs[-1]
    (evaluated,) = run_once(env, policy, [spec], mode).values()
    end = env.mujoco.data(0).qpos.copy()
    viewer = Viewer(env, policy, specs, mode)
    viewer.choose("put the bowl on the plate", -1)
    assert viewer.spec == spec
    while not viewer.over:
        viewer.step()
        for look in (viewer.poses, viewer.path, viewer.lit):
            look()
    assert viewer.episode.result == evaluated
    assert (env.mujoco.data(0).qpos == end).all()
    viewer.reset()
    viewer.move(UP)
    viewer.release()
    while not viewer.over:
        viewer.step()
    assert viewer.episode.result != evaluated
    assert viewer.episode.result.human_steps == 1
    assert not viewer.episode.result.success
    assert viewer.episode.result.reward == 0


def test_play_step_and_takeover(viewer: Viewer) -> None:
    assert list(viewer.tasks) == ["open the drawer of the cabinet", "put the bowl on the plate"]
    first, result = viewer.episode.chunk.clone(), viewer.episode.result
    assert len(first) == 4
    viewer.step()
    assert (viewer.episode.chunk == first[1:]).all()
    assert not viewer.playing
    viewer.play()
    viewer.step()
    assert viewer.playing
    viewer.move(UP)
    assert (viewer.playing, viewer.by_hand, len(viewer.episode.chunk)) == (False, True, 0)
    viewer.play()
    viewer.step()
    assert not viewer.playing, "the policy waits until it is given the arm back"
    assert (result.num_steps, result.human_steps, result.num_decisions) == (3, 1, 1)
    viewer.release()
    assert (viewer.by_hand, result.num_decisions, len(viewer.episode.chunk)) == (False, 2, 4)
    viewer.step()
    assert (result.num_steps, result.human_steps) == (4, 1)
    viewer.reset()
    assert viewer.episode.result.num_steps == 0
    assert (viewer.episode.chunk == first).all()
    viewer.reset(further=1)
    assert viewer.spec == viewer.tasks["open the drawer of the cabinet"][1]


def test_the_end_ends_everything_but_the_next_episode(viewer: Viewer) -> None:
    viewer.play()
    while viewer.playing:
        viewer.step()
    steps = viewer.episode.result.num_steps
    assert viewer.over
    viewer.play()
    viewer.step()
    viewer.move(UP)
    viewer.release()
    assert not viewer.playing
    assert viewer.episode.result.num_steps == steps
    viewer.reset()
    assert not viewer.over


def test_a_hand_moves_the_arm_and_the_fingers(opened: tuple[SuiteEnv, Any, list[EpisodeSpec]]) -> None:
    env, viewer = opened[0], Viewer(*opened, "greedy")
    before = hand(env)
    for _ in range(10):
        viewer.move(UP)
    moved = hand(env) - before
    assert 0.05 < moved[2] < 0.15
    assert np.abs(moved[:2]).max() < 0.01
    open_width = np.ptp(env.mujoco.single_env(0)[1].seen.joints[7:])
    for step in range(10):
        viewer.move((0.0,) * 6, toggle=step == 0)
    assert viewer.grip == 1
    assert np.ptp(env.mujoco.single_env(0)[1].seen.joints[7:]) < 0.5 * open_width


def test_the_path_is_where_the_hand_then_goes(opened: tuple[SuiteEnv, Any, list[EpisodeSpec]]) -> None:
    """From rest less exactly, since the arm's inertia turns the hand; as it moves, with the speed that it has."""
    env, viewer = opened[0], Viewer(*opened, "greedy")
    for share in (0.3, 0.2, 0.12):
        viewer.episode.chunk = torch.tensor([[0.6, 0.8, -0.3, 0, 0, 0, -1]]).repeat(4, 1)
        path = viewer.path()
        assert path.shape == (5, 3)
        np.testing.assert_array_equal(path[0], hand(env))
        for _ in path[1:]:
            viewer.step()
        end = hand(env)
        assert np.linalg.norm(end - path[-1]) < share * np.linalg.norm(end - path[0])


def test_a_simulator_that_breaks_is_said_and_left_by_a_reset(viewer: Viewer, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(type(viewer._env), "step", lambda *_: 1 / 0)
        viewer.play()
        viewer.step()
        assert "the simulator failed in task 'tabletop_goal/open_the" in viewer.problem
        assert (viewer.over, viewer.playing) == (True, False)
        viewer.step()
    viewer.reset()
    viewer.step()
    assert (viewer.problem, viewer.episode.result.num_steps) == ("", 1)


class _Browser:
    """A page whose person asks for these things, one after the other; None: for nothing, until the next step is due."""

    speed = 2.0

    def __init__(self, asked: list[Any]) -> None:
        self.asked, self.shown, self.waited = iter(asked), list[int](), list[float | None]()

    def show(self, viewer: Viewer) -> None:
        self.shown.append(viewer.episode.result.num_steps)

    def next(self, seconds: float | None) -> Any:
        self.waited.append(seconds)
        return next(self.asked)


def test_it_steps_while_it_plays_and_waits_while_it_does_not(viewer: Viewer) -> None:
    page: Any = _Browser([Viewer.step, Viewer.play, None, None, lambda viewer: viewer.play(False), Viewer.step])
    with pytest.raises(StopIteration):
        serve(viewer, page, 20.0)
    assert page.shown == [0, 1, 1, 2, 3, 3, 4]
    assert [seconds is None for seconds in page.waited] == [True, True, False, False, False, True, True]
    assert all(seconds <= 1 / 40 for seconds in page.waited if seconds is not None)


def test_the_grip_that_a_person_takes_over_is_the_policys(viewer: Viewer) -> None:
    viewer.episode.chunk = torch.ones(4, 7)
    viewer.step()
    viewer.move(UP)
    assert viewer.grip == 1
    viewer.move(UP, toggle=True)
    assert viewer.grip == -1
