"""ManiSkill's GPU backend, as far as a machine without a GPU can tell: the refusal, and the booking over a fake one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from embodied_rl.errors import UserError
from embodied_rl.evaluation.evaluate import evaluate
from embodied_rl.policy import ActMode
from embodied_rl.rng import DecisionRng
from embodied_rl.scheduler.config import PipelinedConfig, check_together
from embodied_rl.sim.maniskill import gpu
from embodied_rl.sim.maniskill.gpu import ManiSkillGpuVecEnv
from embodied_rl.sim.maniskill.tasks import load_tasks
from embodied_rl.sim.maniskill.vec_env import Setup
from embodied_rl.types import ActOutput, EpisodeSpec, Observation
from tests.sim.contract import check_result
from tests.sim.optional import needs
from tests.toy import ToyPolicy

pytestmark = needs("mani_skill")
PUSH = "maniskill/PushCube-v1"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_is_refused_in_one_line() -> None:
    with pytest.raises(UserError, match=r"needs an NVIDIA GPU.*take its CPU backend"):
        ManiSkillGpuVecEnv(load_tasks(["PushCube-v1"])[0], 4)


class Counting:
    """Worlds that count: state = (seed, steps, action); success at step 3 + env number."""

    control_mode, reward_mode, control_freq = "pd_joint_delta_pos", "normalized_dense", 20
    agent = SimpleNamespace(uid="other", supported_control_modes=["pd_joint_delta_pos"])
    single_action_space = SimpleNamespace(low=-np.ones(2), high=np.ones(2))
    scene = SimpleNamespace(sensors={"base_camera": None})

    def __init__(self, num_envs: int) -> None:
        self.state = torch.zeros(num_envs, 3)

    def reset(self, seed: Any, options: dict[str, Any] | None = None) -> tuple[torch.Tensor, dict[str, Any]]:
        index = range(len(self.state)) if options is None else options["env_idx"].tolist()
        for env_id in index:
            self.state[env_id] = torch.tensor([float(seed if options is None else seed[env_id]) % 97, 0.0, 0.0])
        return self.state.clone(), {"success": torch.zeros(len(self.state), dtype=torch.bool)}

    def step(self, actions: torch.Tensor) -> tuple[torch.Tensor, ...]:
        self.state[:, 1] += 1
        self.state[:, 2] = actions[:, 0]
        success = self.state[:, 1] >= 3 + torch.arange(len(self.state))
        return self.state.clone(), self.state[:, 1] / 10, success, torch.zeros_like(success), {"success": success}  # type: ignore[return-value]

    def _get_obs_sensor_data(self) -> dict[str, dict[str, torch.Tensor]]:
        image = self.state[:, 1].byte()[:, None, None, None].expand(-1, 4, 4, 3)
        return {"base_camera": {"rgb": image}}

    def close(self) -> None:
        pass


@pytest.fixture
def env(monkeypatch: pytest.MonkeyPatch) -> ManiSkillGpuVecEnv:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(gpu, "make", lambda _, num_envs, **options: Counting(num_envs))
    return ManiSkillGpuVecEnv(load_tasks(["PushCube-v1"])[0], 3, Setup(image_size=4, gamma=0.5))


class Hands(Counting):
    """A Panda in each world, whose hand is as high as its worlds' steps, with the controller of LIBERO's actions."""

    control_mode = "pd_ee_delta_pose"
    single_action_space = SimpleNamespace(low=-np.ones(7), high=np.ones(7))

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs)
        arm = SimpleNamespace(pos_upper=0.1, rot_upper=0.1)
        self.agent = SimpleNamespace(
            uid="panda",
            supported_control_modes=["pd_ee_delta_pose"],
            controller=SimpleNamespace(configs={"arm": arm}),
            robot=SimpleNamespace(get_qpos=lambda: torch.full((num_envs, 9), 0.04)),
        )
        self._hidden_objects = ["a goal"]
        self._move()

    def _move(self) -> None:
        still = torch.zeros(len(self.state))
        place = torch.stack([still, still, self.state[:, 1]], dim=1)
        turn = torch.tensor([[np.cos(0.5), 0.0, np.sin(0.5), 0.0]]).expand(len(self.state), 4).float()
        self.agent.tcp = SimpleNamespace(pose=SimpleNamespace(p=place, q=turn))

    def reset(self, seed: Any, options: dict[str, Any] | None = None) -> tuple[torch.Tensor, dict[str, Any]]:
        found = super().reset(seed, options)
        self._move()
        return found

    def step(self, actions: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = super().step(actions)
        self._move()
        return found


def test_proprio_is_liberos_and_stays_where_an_episode_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(gpu, "make", lambda _, num_envs, **options: Hands(num_envs))
    env = ManiSkillGpuVecEnv(load_tasks(["PushCube-v1"])[0], 2, Setup(image_size=4, cameras=1, for_policies=True))
    assert (env.info.proprio_dim, env.info.action_dim, env.info.cameras) == (8, 7, ("base_camera",))
    env.reset([0, 1], [EpisodeSpec(i, PUSH, i, 0) for i in range(2)])
    assert env._env._hidden_objects == []  # a policy of images has no other way to know the goal
    result = env.step([0, 1], torch.zeros(2, 4, 7))
    assert result.success.tolist() == [True, True]
    assert result.steps_taken.tolist() == [3, 4]
    out = env.new_observation(2)
    env.observe([0, 1], out)
    expected = [[0, 0, high, 0, 1, 0, 0.04, 0.04] for high in (3, 4)]
    torch.testing.assert_close(out.proprio, torch.tensor(expected), rtol=0, atol=1e-6)
    with pytest.raises(UserError, match=r"has 1 camera \(base_camera\), not 2"):
        ManiSkillGpuVecEnv(load_tasks(["PushCube-v1"])[0], 2, Setup(image_size=4, cameras=2))


def test_processes_are_refused_by_name() -> None:
    factory = gpu.ManiSkillGpuFactory(load_tasks(["PushCube-v1"])[0], Setup())
    assert "leave --env.processes out" in factory.why_no_processes


def test_ends_are_kept_while_other_worlds_move_on(env: ManiSkillGpuVecEnv) -> None:
    env.reset(range(3), [EpisodeSpec(i, PUSH, i, 0) for i in range(3)])
    actions = torch.full((3, 6, 2), 0.5)
    result = env.step([0, 1, 2], actions[:, :4])
    check_result(result, env.info, 3)
    assert result.steps_taken.tolist() == [3, 4, 4]
    assert result.terminated.tolist() == result.success.tolist() == [True, True, False]
    assert result.reward[0].tolist() == pytest.approx([0.1, 0.1, 0.8, 0.0]), "what was paid on the way is taken back"
    assert result.reward[2].tolist() == pytest.approx([0.1, 0.1, 0.1, 0.5 * 0.4 - 0.3])
    out = env.new_observation(3)
    env.observe([0, 1, 2], out)
    assert out.state is not None
    assert out.state[:, 1].tolist() == [3, 4, 4]
    assert out.images[:, 0, 0, 0, 0].tolist() == [3, 4, 4]
    result = env.step([2], actions[:1, :2])
    assert result.steps_taken.tolist() == [1]
    assert result.reward.tolist() == [pytest.approx([0.6, 0.0])]
    env.observe([0], out)
    assert out.state[0, 1] == 3


def test_a_world_that_breaks_fails_alone_and_shows_its_last_sound_state(
    env: ManiSkillGpuVecEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    env.reset(range(3), [EpisodeSpec(i, PUSH, i, 0) for i in range(3)])
    env.step(range(3), torch.zeros(3, 1, 2))
    advance = env._env.step

    def breaks(actions: torch.Tensor) -> tuple[torch.Tensor, ...]:
        state, *rest = advance(actions)
        state[1] = torch.nan
        return state, *rest

    monkeypatch.setattr(env._env, "step", breaks)
    result = env.step(range(3), torch.zeros(3, 1, 2))
    assert result.failed.tolist() == [False, True, False]
    out = env.new_observation(3)
    env.observe(range(3), out)
    assert out.state is not None
    assert out.state[:, 1].tolist() == [2, 1, 2]


def test_wrong_ids_and_initial_states_are_refused(env: ManiSkillGpuVecEnv) -> None:
    env.reset(range(3), [EpisodeSpec(i, PUSH, i, 0) for i in range(3)])
    for wrong in ([1, 1], [-1, 0], [0, 3]):
        with pytest.raises(ValueError, match="env"):
            env.reset(wrong, [EpisodeSpec(i, PUSH, i, 0) for i in range(2)])
    with pytest.raises(ValueError, match="must differ"):
        env.step([0, 1, 2, 2], torch.zeros(4, 1, 2))
    with pytest.raises(UserError, match="initial states 0 to"):
        env.reset([0], [EpisodeSpec(0, PUSH, -1, 0)])


def test_a_running_episode_that_is_not_named_is_given_up(env: ManiSkillGpuVecEnv) -> None:
    env.reset([0, 1, 2], [EpisodeSpec(i, PUSH, i, 0) for i in range(3)])
    assert env.step([0, 2], torch.zeros(2, 1, 2)).steps_taken.tolist() == [1, 1]
    with pytest.raises(ValueError, match="a step that did not name it gave it up"):
        env.step([0, 1, 2], torch.zeros(3, 1, 2))
    env.reset([0, 2], [EpisodeSpec(i, PUSH, i, 0) for i in range(2)])
    assert env.step([2, 0], torch.zeros(2, 1, 2)).steps_taken.tolist() == [1, 1]
    with pytest.raises(ValueError, match="non-finite"):
        env.step([2, 0], torch.full((2, 1, 2), torch.nan))
    env.reset([0], [EpisodeSpec(5, PUSH, 5, 0)])  # of the others nothing changes
    out = env.new_observation(2)
    env.observe([0, 2], out)
    assert out.state is not None
    assert out.state[:, 1].tolist() == [0, 1]


class SometimesNan(ToyPolicy):
    """Two actions; the second decision of the first episode has a NaN, once."""

    sick = 1

    def act(self, obs: Observation, rng: DecisionRng, mode: ActMode) -> ActOutput:
        actions = torch.zeros(len(obs.instruction), 1, 2)
        for row, (seed, decision) in enumerate(zip(rng.seed, rng.decision, strict=True)):
            if (seed, decision) == (SPECS[0].seed, 1) and self.sick:
                actions[row], self.sick = torch.nan, 0
        return ActOutput(actions, torch.zeros(len(actions), 1), None, {})


SPECS = [EpisodeSpec(i, PUSH, i, 100 + i) for i in range(5)]


def test_an_episode_with_actions_that_are_not_finite_runs_again_and_costs_no_other(env: ManiSkillGpuVecEnv) -> None:
    """A step must not wait for the row that can't be stepped."""
    found = evaluate(env, SometimesNan(), SPECS, "greedy")
    assert [result.spec for result in found.results] == SPECS
    assert all(result.success for result in found.results)
    assert found.not_measured == []


def test_two_env_groups_are_refused_and_one_is_the_default(env: ManiSkillGpuVecEnv) -> None:
    with pytest.raises(
        UserError, match=r"env-groups is 2, but maniskill .* moves all envs in every step.*env-groups 1"
    ):
        check_together(PipelinedConfig(env_groups=2), env.info)
    check_together(PipelinedConfig(env_groups=1), env.info)
    check_together(PipelinedConfig(), env.info)
    assert PipelinedConfig().num_env_groups(3, cpu=False, together=env.info.steps_together) == 1
