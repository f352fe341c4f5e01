"""`explain` on a cheap stand-in: each planted difference is found and ranked first, and parts at the right step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from embodied_rl.errors import UserError
from embodied_rl.evaluation.actions import ActionRecorder
from embodied_rl.evaluation.evaluate import evaluate
from embodied_rl.evaluation.record import seen_at
from embodied_rl.policy import ActMode
from embodied_rl.rng import DecisionRng
from embodied_rl.rollout.sampler import evaluation_specs
from embodied_rl.sim.wrappers.flip_gripper import FlipGripper
from embodied_rl.studies.effects import Effect, Trace, effect, first_parting, ranked, to_json
from embodied_rl.telemetry.pictures import side_by_side
from embodied_rl.types import ActOutput, ChunkResult, Observation
from embodied_rl.vec_env import VecEnv
from tests.toy import CHUNK, ToyEnv, ToyPolicy

SPECS = evaluation_specs({"toy/reach": range(10), "toy/touch": range(10)}, 0)


class Seeing(ToyPolicy):
    """Steers from where it is to the red pixel, all the way: succeeds in every state."""

    def act(self, obs: Observation, rng: DecisionRng, mode: ActMode) -> ActOutput:
        red = obs.images[:, 0, :, :, 0].flatten(1).argmax(dim=1)
        goal = torch.stack([red % 4, red // 4], dim=1) / 4 * 2 - 0.75
        step = ((goal - obs.proprio) * 2).clamp(-1, 1)[:, None].expand(-1, CHUNK, -1).contiguous()
        return ActOutput(step, torch.zeros(len(step), 4), None, {})


class Mirrored(ToyEnv):
    """Shows its pictures mirrored."""

    def observe(self, env_ids: Sequence[int], out: Observation) -> None:
        super().observe(env_ids, out)
        out.images[: len(env_ids)] = out.images[: len(env_ids)].flip(3)


class Short(ToyEnv):
    """Ends after two control steps."""

    def step(self, env_ids: Sequence[int], actions: torch.Tensor) -> ChunkResult:
        result = super().step(env_ids, actions)
        result.truncated |= ~result.success
        for row, env_id in enumerate(env_ids):
            if result.truncated[row]:
                self._spec[env_id] = None
        return result


PLANTED: dict[str, Callable[[], VecEnv]] = {
    "pictures": lambda: Mirrored(4),
    "gripper sign": lambda: FlipGripper(ToyEnv(4)),
    "horizon": lambda: Short(4),
    "nothing": lambda: ToyEnv(7),
}


def traces(env: VecEnv) -> list[Trace]:
    recorder = ActionRecorder(env)
    report = evaluate(recorder, Seeing(), SPECS, "greedy")
    return [Trace(result.spec, result, recorder.take(result.spec.episode_id)) for result in report.results]


BASE = traces(ToyEnv(4))


@pytest.fixture(scope="module")
def effects() -> dict[str, Effect]:
    """20 episodes each, 100 in all."""
    assert all(trace.success for trace in BASE)
    return {name: effect(name, ("a", "b"), BASE, traces(make())) for name, make in PLANTED.items()}


@pytest.mark.parametrize("name", ["pictures", "gripper sign", "horizon"])
def test_a_planted_difference_is_ranked_first(effects: dict[str, Effect], name: str) -> None:
    order = ranked([effects["nothing"], effects[name]])
    assert order[0] is effects[name]
    assert effects[name].difference <= -0.3
    assert effects[name].high < 0 < effects["nothing"].high
    assert effects[name].success[0] == 1.0


def test_what_changes_nothing_shows_nothing(effects: dict[str, Effect]) -> None:
    same = effects["nothing"]
    assert (same.difference, same.parted, same.step, same.example) == (0.0, 0, None, None)
    assert effects["horizon"].parted == 0  # the same commands, for less long


def test_the_first_step_apart_is_found(effects: dict[str, Effect]) -> None:
    assert effects["pictures"].step == 0
    example = effects["gripper sign"].example
    assert example is not None
    assert example[1] == CHUNK  # the first chunk is commanded alike, and then the world is another
    assert first_parting(np.zeros((3, 2)), np.zeros((5, 2))) is None
    assert first_parting(np.zeros((0, 2)), np.zeros((5, 2))) is None
    apart = np.zeros((4, 2))
    apart[2, 1] = 1e-3
    assert first_parting(np.zeros((3, 2)), apart) == 2


def test_the_picture_is_of_the_step_at_which_they_part(effects: dict[str, Effect]) -> None:
    spec, step = effects["pictures"].example or (SPECS[0], 0)
    rows = [seen_at(env, Seeing(), spec, "greedy", step) for env in (ToyEnv(1), Mirrored(1))]
    assert np.array_equal(rows[0][0][:, ::-1], rows[1][0])
    assert side_by_side(rows).shape == (2 * 264, 2 * 264, 3)
    with pytest.raises(ValueError, match="before step 100"):
        seen_at(ToyEnv(1), Seeing(), spec, "greedy", 100)


def test_only_episodes_that_both_sides_measured_make_a_pair() -> None:
    sides = []
    for state in (3, 7):
        lost = {("toy/reach", state), ("toy/touch", 5)}
        sides.append([t if (t.spec.task, t.spec.init_state) not in lost else replace(t, result=None) for t in BASE])
    found = effect("x", ("a", "b"), *sides)
    assert (found.episodes, found.not_measured, found.difference) == (17, 3, 0.0)
    assert to_json(found)["not_measured"] == 3
    none = [replace(trace, result=None) for trace in BASE]
    with pytest.raises(UserError, match=r"^x: the simulator broke in every one of 20 episodes"):
        effect("x", ("a", "b"), none, BASE)


def test_two_runs_of_other_episodes_are_refused() -> None:
    one = traces(ToyEnv(4))
    other = [replace(trace, spec=SPECS[0]) for trace in one]
    with pytest.raises(ValueError, match="same episodes"):
        effect("x", ("a", "b"), one, other)
