"""PPO for a vision-language-action policy in one file: rollout, advantages, update. It needs no GPU and no download.

    python examples/ppo_single_file.py --iterations 10

What `embodied-rl train` adds: checkpoints and exact resume, retries of broken simulators, microbatches, schedulers that
roll out and learn at the same time, several GPUs. One update here equals one of `embodied_rl.learner` (a test).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import tyro
from torch import Tensor, nn

import embodied_rl as erl
from embodied_rl.rng import DecisionRng, philox
from embodied_rl.types import EpisodeSpec


@dataclass(frozen=True)
class Args:
    """The settings of the recipe tabletop_openvla_ppo, where they have a counterpart."""

    suite: str = "tabletop_spatial"
    tasks: tuple[str, ...] = ()
    """Short names; none given: all of the suite."""
    num_envs: int = 32
    iterations: int = 30
    episodes: int = 128
    """Episodes of an iteration."""
    eval_episodes: int = 50
    seed: int = 0
    temperature: float = 0.6
    lr: float = 2e-4
    value_lr: float = 3e-3
    lr_warmup: int = 5
    """Updates over which the learning rates rise linearly."""
    critic_warmup: int = 2
    """First updates, in which the critic alone learns."""
    minibatch_size: int = 512
    epochs: int = 1
    gamma: float = 0.99
    gae_lambda: float = 0.95
    clip: float = 0.2
    value_clip: float = 0.2
    value_coef: float = 0.5
    max_grad_norm: float = 1.0


@dataclass
class Episode:
    """An episode and its decisions so far."""

    spec: EpisodeSpec
    steps: list[Step] = field(default_factory=list)
    success: bool = False


@dataclass
class Step:
    """One decision: what was seen, what was decided, what it brought. Tensors without a batch dimension."""

    images: Tensor  # uint8 [V, H, W, 3]
    proprio: Tensor  # float32 [P]
    instruction: str
    replay: dict[str, Tensor]  # what `policy.evaluate` needs to find the same decision again, such as its tokens
    log_prob: Tensor  # float32 [L], one a token
    value: Tensor  # float32 []
    reward: float  # of all control steps of the chunk
    mask: Tensor  # bool [L]: tokens of control steps that ran; the rest of a chunk is dropped when the task is done


@dataclass
class Batch:
    """The decisions of all episodes below each other: R rows."""

    images: Tensor
    proprio: Tensor
    instruction: list[str]
    replay: dict[str, Tensor]
    log_prob: Tensor
    value: Tensor
    mask: Tensor
    advantage: Tensor
    returns: Tensor


# ---------------------------------------------------------------------------------------------------------- rollout


def draw_episodes(states: Mapping[str, Sequence[int]], count: int, seed: int, iteration: int) -> list[EpisodeSpec]:
    """Tasks in turn, each from a random initial state. All that is random in an episode follows from its spec."""
    random, names = np.random.default_rng([seed, iteration]), list(states)
    specs = []
    for number in range(count):
        task = names[number % len(names)]
        state = int(random.choice(np.asarray(states[task])))
        specs.append(EpisodeSpec(iteration * count + number, task, state, seed=int(random.integers(2**62))))
    return specs


def rollout(env: Any, policy: Any, specs: Sequence[EpisodeSpec]) -> list[Episode]:
    """Run every episode once and return them in order. An environment gets the next episode as soon as one ends."""
    waiting = deque(Episode(spec) for spec in specs)
    running: dict[int, Episode] = {}
    finished: list[Episode] = []
    while waiting or running:
        free = [env_id for env_id in range(env.num_envs) if env_id not in running][: len(waiting)]
        if free:
            running |= {env_id: waiting.popleft() for env_id in free}
            env.reset(free, [running[env_id].spec for env_id in free])
        env_ids = sorted(running)
        for env_id, step, over, failed, success in decide(env, policy, env_ids, [running[i] for i in env_ids]):
            episode = running[env_id]
            episode.steps.append(step)
            episode.success |= success
            if failed:  # the simulator broke: run the episode again, it says nothing about the policy
                waiting.appendleft(Episode(running.pop(env_id).spec))
            elif over:
                finished.append(running.pop(env_id))
    return sorted(finished, key=lambda episode: episode.spec.episode_id)


def decide(
    env: Any, policy: Any, env_ids: list[int], episodes: list[Episode]
) -> Iterator[tuple[int, Step, bool, bool, bool]]:
    """One decision for each environment, and the chunk of control steps that it stands for."""
    obs = env.new_observation(len(env_ids))
    env.observe(env_ids, obs)
    # Row i's random numbers depend on its episode and on how many decisions that has had, not on the batch.
    seeds = np.array([episode.spec.seed for episode in episodes])
    rng = DecisionRng(seeds, np.array([len(episode.steps) for episode in episodes]))
    act = policy.act(obs, rng, "sample")
    result = env.step(env_ids, act.actions)
    for row, env_id in enumerate(env_ids):
        ran = torch.arange(policy.chunk_len) < int(result.steps_taken[row])
        step = Step(
            obs.images[row].clone(),
            obs.proprio[row].clone(),
            obs.instruction[row],
            {name: values[row] for name, values in act.replay.items()},
            act.log_prob[row],
            act.value[row],
            float(result.reward[row].sum()),
            ran.repeat_interleave(policy.terms_per_step),
        )
        over = bool(result.terminated[row] | result.truncated[row])
        yield env_id, step, over, bool(result.failed[row]), bool(result.success[row])


# ------------------------------------------------------------------------------------------------------- advantages


def gae(episode: Episode, gamma: float, gae_lambda: float) -> list[float]:
    """Generalised advantage estimation (Schulman et al. 2016) over decisions; running out of time is worth 0."""
    advantages, following_value, following = [], 0.0, 0.0
    for step in reversed(episode.steps):
        delta = step.reward + gamma * following_value - float(step.value)
        following = delta + gamma * gae_lambda * following
        following_value = float(step.value)
        advantages.append(following)
    return advantages[::-1]


def make_batch(episodes: Sequence[Episode], args: Args) -> Batch:
    """Stack all decisions; normalise the advantages over the batch."""
    steps = [step for episode in episodes for step in episode.steps]
    raw = torch.tensor([value for episode in episodes for value in gae(episode, args.gamma, args.gae_lambda)])
    value = torch.stack([step.value for step in steps])
    return Batch(
        images=torch.stack([step.images for step in steps]),
        proprio=torch.stack([step.proprio for step in steps]),
        instruction=[step.instruction for step in steps],
        replay={name: torch.stack([step.replay[name] for step in steps]) for name in steps[0].replay},
        log_prob=torch.stack([step.log_prob for step in steps]),
        value=value,
        mask=torch.stack([step.mask for step in steps]),
        advantage=(raw - raw.mean()) / (raw.std(correction=0) + 1e-8),
        returns=raw + value,
    )


# ----------------------------------------------------------------------------------------------------------- update


def make_optimizer(policy: nn.Module, args: Args) -> torch.optim.Optimizer:
    """AdamW with a learning rate for the policy and one for the critic, the module named `value_head`."""
    critic = [value for name, value in policy.named_parameters() if "value_head" in name.split(".")]
    ids = {id(value) for value in critic}
    actor = [value for value in policy.parameters() if value.requires_grad and id(value) not in ids]
    groups = [{"params": actor, "lr": args.lr}, {"params": critic, "lr": args.value_lr}]
    return torch.optim.AdamW(groups, betas=(0.9, 0.95), weight_decay=0.0)


def ppo_loss(policy: Any, batch: Batch, rows: Tensor, scale: float, args: Args, critic_only: bool) -> Tensor:
    """PPO's clipped loss (Schulman et al. 2017, eq. 7) with one ratio a token, and the clipped value loss.

    `scale`: what a row weighs, so that the minibatches of an epoch add up to the batch's mean.
    """
    index = rows.tolist()
    out = policy.evaluate(
        batch.images[rows],
        batch.proprio[rows],
        [batch.instruction[i] for i in index],
        {name: values[rows] for name, values in batch.replay.items()},
    )
    mask, advantage, returns, old = batch.mask[rows], batch.advantage[rows], batch.returns[rows], batch.value[rows]
    moved = old + (out.value - old).clamp(-args.value_clip, args.value_clip)
    error = torch.maximum((out.value - returns).square(), (moved - returns).square())
    loss = args.value_coef * 0.5 * error.sum() * scale / len(batch.returns)
    if critic_only:
        return loss
    ratio = (out.log_prob - batch.log_prob[rows]).where(mask, torch.zeros(())).exp()
    clipped = ratio.clamp(1 - args.clip, 1 + args.clip)
    gain = torch.minimum(ratio * advantage[:, None], clipped * advantage[:, None])
    return loss - gain[mask].sum() * scale / batch.mask.sum()


def update(policy: Any, optimizer: torch.optim.Optimizer, batch: Batch, args: Args, iteration: int) -> float:
    """Improve the policy with a batch, in minibatches; return the mean loss."""
    warmup = min(1.0, (iteration + 1) / (args.lr_warmup + 1))
    for group, lr in zip(optimizer.param_groups, (args.lr, args.value_lr), strict=True):
        group["lr"] = lr * warmup
    critic_only = iteration < args.critic_warmup
    parts = max(1, round(len(batch.returns) / args.minibatch_size))
    total = 0.0
    for epoch in range(args.epochs):
        order = philox(args.seed, 5, iteration, epoch).permutation(len(batch.returns))
        for rows in np.array_split(order, parts):
            optimizer.zero_grad()
            loss = ppo_loss(policy, batch, torch.from_numpy(rows), parts, args, critic_only)
            loss.backward()
            moving = optimizer.param_groups[1]["params"] if critic_only else policy.parameters()
            nn.utils.clip_grad_norm_(moving, args.max_grad_norm)
            optimizer.step()
            total += loss.item() / (parts * args.epochs)
    return total


# ------------------------------------------------------------------------------------------------------------- main


def main(args: Args) -> None:
    policy = erl.load_policy(critic=True)
    policy.temperature = args.temperature
    optimizer = make_optimizer(policy, args)
    with erl.make_vec_env(args.suite, args.num_envs, tasks=args.tasks) as env:
        print(f"before: {erl.evaluate(env, policy, args.eval_episodes).overall}")
        for iteration in range(args.iterations):
            began = time.perf_counter()
            episodes = rollout(env, policy, draw_episodes(env.train_states, args.episodes, args.seed, iteration))
            batch = make_batch(episodes, args)
            loss = update(policy, optimizer, batch, args, iteration)
            rate = sum(episode.success for episode in episodes) / len(episodes)
            print(
                f"iteration {iteration + 1}: success {rate:.0%}, loss {loss:+.4f}, {time.perf_counter() - began:.1f} s"
            )
        print(f"after: {erl.evaluate(env, policy, args.eval_episodes).overall}")


if __name__ == "__main__":
    main(tyro.cli(Args))
