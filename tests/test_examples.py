"""What docs and examples show works as it stands; the one-file PPO is the learner's."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from embodied_rl.algorithms.config import PPOConfig
from embodied_rl.algorithms.ppo import PPO
from embodied_rl.learner.config import LearnerConfig
from embodied_rl.learner.learner import Learner
from embodied_rl.rollout.sampler import EpisodeSampler
from embodied_rl.types import EpisodeResult, EpisodeSpec, RolloutBatch
from tests.embodied_rl.scheduler.toys import Setup, serial
from tests.toy import TASKS, ToyEnv, ToyPolicy

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
PAGES = sorted((ROOT / "docs" / "extend").glob("*.md"))


@pytest.fixture(autouse=True)
def as_a_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In an empty folder, with examples/ on the path."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(EXAMPLES))


def blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.M | re.S)


def test_each_page_has_code() -> None:
    assert [page.stem for page in PAGES] == ["algorithm", "policy", "reward", "robot", "simulator"]
    assert all(blocks(page) for page in PAGES)


@pytest.mark.process
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_code_of_a_page_runs_as_it_stands(page: Path) -> None:
    """From top to bottom, in one namespace; in a process of its own, since it adds names to the program."""
    code = "\n".join(blocks(page))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(EXAMPLES)]), "OMP_NUM_THREADS": "1"}
    script = f"import sys\nsys.modules['page'] = module = type(sys)('page')\nexec({code!r}, module.__dict__)"
    done = subprocess.run([sys.executable, "-c", script], env=environment, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize(
    ("name", "page"), [("custom_simulator", "simulator"), ("custom_policy", "policy"), ("wrapped_policy", "policy")]
)
def test_a_page_shows_the_whole_example(name: str, page: str) -> None:
    assert (EXAMPLES / f"{name}.py").read_text() in blocks(ROOT / "docs" / "extend" / f"{page}.md")


def test_the_wrapped_network_is_short_and_learns(tmp_path: Path) -> None:
    """In the toy world: a few steps of imitation, then a few updates of PPO, each of which raises success."""
    assert len((EXAMPLES / "wrapped_policy.py").read_text().splitlines()) <= 60
    import wrapped_policy as example  # type: ignore[import-not-found]

    torch.manual_seed(0)
    env = ToyEnv(32)
    policy = example.make_policy(env.info)
    specs = [EpisodeSpec(row, task, row // 2, 0) for row, task in enumerate([*TASKS] * 16)]
    env.reset(range(32), specs)
    obs = env.new_observation(32)
    env.observe(range(32), obs)
    goals = torch.tensor([[2.0 * (spec.init_state % 2) - 1, 2.0 * (spec.init_state // 2 % 2) - 1] for spec in specs])
    actions = goals[:, None].expand(-1, policy.chunk_len, -1)
    adam = torch.optim.Adam(policy.parameters(), lr=2e-3)
    losses = list[float]()
    for _ in range(80):
        loss = policy.sft_loss(obs.images, obs.proprio, obs.instruction, actions)
        adam.zero_grad()
        loss.backward()
        adam.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]

    policy.with_value = True
    learner = LearnerConfig(lr=1e-3, value_lr=1e-2, minibatch_size=64, microbatch_size=64)
    setup = Setup(PPOConfig(gamma=0.9, critic_warmup_iterations=0, epochs=2), 128, 4, learner)
    batches = serial(setup, tmp_path, 32, policy=policy).batches
    rates = [np.mean([episode.success for episode in batch.episodes]) for batch in batches]
    assert 0.1 < rates[0] < rates[-1] - 0.05


def _learned(episodes: list[Any]) -> RolloutBatch:
    """The same decisions as the trainer's own batch."""
    steps = [step for episode in episodes for step in episode.steps]
    lengths = torch.tensor([len(episode.steps) for episode in episodes])
    return RolloutBatch(
        images=torch.stack([step.images for step in steps]),
        proprio=torch.stack([step.proprio for step in steps]),
        instruction=[step.instruction for step in steps],
        replay={name: torch.stack([step.replay[name] for step in steps]) for name in steps[0].replay},
        log_prob=torch.stack([step.log_prob for step in steps]),
        value=torch.stack([step.value for step in steps]),
        reward=torch.tensor([step.reward for step in steps]),
        mask=torch.stack([step.mask for step in steps]),
        episode=torch.repeat_interleave(torch.arange(len(episodes)), lengths),
        episodes=[EpisodeResult(e.spec, e.success, e.success, not e.success, 0.0, len(e.steps), 0) for e in episodes],
    )


@pytest.mark.parametrize("broken", [False, True])
def test_one_update_of_the_single_file_is_one_of_the_learner(broken: bool) -> None:
    """Two epochs of several minibatches; a rate that is off by a thousandth is seen."""
    import ppo_single_file as trainer  # type: ignore[import-not-found]

    args = trainer.Args(seed=3, minibatch_size=50, epochs=2, lr=1e-2, lr_warmup=0, critic_warmup=0)
    sampler = EpisodeSampler(3, TASKS)
    specs = [spec for _ in range(160) for spec in sampler.next_group()]
    mine, theirs = ToyPolicy(), ToyPolicy()
    episodes = trainer.rollout(ToyEnv(5), mine, specs)
    assert [episode.spec for episode in episodes] == specs
    assert 0 < sum(episode.success for episode in episodes) < len(episodes)

    config = LearnerConfig(lr=args.lr * (1.001 if broken else 1), value_lr=args.value_lr, minibatch_size=50)
    algorithm = PPO(PPOConfig(epochs=2, bootstrap_truncated=False))
    learner = Learner(theirs, algorithm, config, seed=args.seed, dump_dir=Path("dumps"))
    metrics = learner.update(_learned(episodes))
    loss = trainer.update(mine, trainer.make_optimizer(mine, args), trainer.make_batch(episodes, args), args, 0)

    start, end, other = ToyPolicy().state_dict(), mine.state_dict(), theirs.state_dict()
    assert not torch.equal(start["head.weight"], end["head.weight"])
    same = all(torch.allclose(end[key], other[key], rtol=1e-5, atol=1e-7) for key in end)
    assert same is not broken
    if not broken:
        assert np.isclose(loss, metrics["train/loss"], rtol=1e-4)


def test_the_single_file_trains_the_shipped_policy(capsys: pytest.CaptureFixture[str]) -> None:
    import ppo_single_file as trainer  # type: ignore[import-not-found]

    trainer.main(
        trainer.Args(
            suite="tabletop_goal",
            tasks=("turn_on_the_stove",),
            num_envs=2,
            iterations=1,
            episodes=2,
            eval_episodes=1,
            critic_warmup=0,
        )
    )
    assert "iteration 1: success" in capsys.readouterr().out
