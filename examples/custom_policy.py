"""Train a policy of your own on a built-in suite: a small CNN with Gaussian actions.

python examples/custom_policy.py --iterations 20 --output runs/custom_policy
"""

import argparse
import math

import torch
from torch import Tensor, nn

import embodied_rl as erl
from embodied_rl.policy import ActMode, PolicyTraits, masked_steps
from embodied_rl.rng import DecisionRng
from embodied_rl.types import ActOutput, EvalOutput, Observation
from embodied_rl.vec_env import EnvInfo


class GaussianPolicy(nn.Module):
    """Chunks of independent Gaussian actions, from the images and the robot's state."""

    with_value = True  # fill `value`, which PPO needs
    traits = PolicyTraits(critic="value_head.")  # these parameters are the critic's, with a learning rate of their own

    def __init__(self, info: EnvInfo, chunk_len: int = 8) -> None:
        super().__init__()
        self.chunk_len, self.action_dim = chunk_len, info.action_dim
        self.terms_per_step = info.action_dim  # log-prob terms of a control step: one an action dimension
        self.eye = nn.Sequential(
            nn.Conv2d(3 * len(info.cameras), 16, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(4),
            nn.Flatten(),
            nn.Linear(256, 64),
        )
        self.body = nn.Sequential(nn.Linear(64 + info.proprio_dim, 64), nn.Tanh())
        self.mean = nn.Linear(64, chunk_len * info.action_dim)
        self.log_std = nn.Parameter(torch.full((chunk_len * info.action_dim,), -0.7))
        self.value_head = nn.Linear(64, 1)

    @torch.no_grad()
    def act(self, obs: Observation, rng: DecisionRng, mode: ActMode) -> ActOutput:
        """Decide for N environments. Draw from `rng` only: then a row does not depend on the others."""
        mean, value = self._forward(obs.images, obs.proprio)
        noise = torch.from_numpy(rng.normal(mean.shape[1]))
        drawn = mean if mode == "greedy" else mean + self.log_std.exp() * noise
        actions = drawn.clamp(-1, 1).reshape(-1, self.chunk_len, self.action_dim)
        return ActOutput(actions, self._log_prob(mean, drawn), value, {"drawn": drawn})

    def evaluate(
        self, images: Tensor, proprio: Tensor, instruction: list[str], replay: dict[str, Tensor]
    ) -> EvalOutput:
        """Compute the log-probs of recorded decisions again, with gradients."""
        mean, value = self._forward(images, proprio)
        entropy = (self.log_std + 0.5 * math.log(2 * math.pi * math.e)).expand_as(mean)
        return EvalOutput(self._log_prob(mean, replay["drawn"]), entropy, value)

    def sft_loss(
        self,
        images: Tensor,
        proprio: Tensor,
        instruction: list[str],
        actions: Tensor,
        drop_action_history: Tensor | None = None,
        action_mask: Tensor | None = None,
    ) -> Tensor:
        """Imitation: squared error of the mean."""
        mean, _ = self._forward(images, proprio)
        return masked_steps(mean - actions.flatten(1), action_mask).square().mean()

    def _forward(self, images: Tensor, proprio: Tensor) -> tuple[Tensor, Tensor]:
        pixels = images.float().div(255).permute(0, 1, 4, 2, 3).flatten(1, 2)  # [N, V, H, W, 3] -> [N, 3 V, H, W]
        hidden = self.body(torch.cat([self.eye(pixels), proprio], dim=1))
        return self.mean(hidden), self.value_head(hidden.detach())[:, 0]

    def _log_prob(self, mean: Tensor, drawn: Tensor) -> Tensor:
        return torch.distributions.Normal(mean, self.log_std.exp()).log_prob(drawn)


erl.register_policy("gaussian", GaussianPolicy)  # --policy gaussian, with --import custom_policy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--episodes", type=int, default=64, help="episodes an iteration")
    parser.add_argument("--output", default="runs/custom_policy")
    args = parser.parse_args()
    torch.manual_seed(0)
    with erl.make_vec_env("tabletop_goal", num_envs=8, tasks=["turn_on_the_stove"]) as env:
        policy = GaussianPolicy(env.info)
        erl.train(
            "tabletop_openvla_ppo",
            iterations=args.iterations,
            output=args.output,
            env=env,
            policy=policy,
            rollout={"episodes_per_iteration": args.episodes},
            evaluation={"states_per_task": 4, "every": 0},
            videos=0,
        )
        # The weights come back into a policy of the same class; `train(resume=...)` takes one too.
        again = erl.load_policy(args.output, into=GaussianPolicy(env.info))
        print(erl.evaluate(env, again, episodes=4).overall)


if __name__ == "__main__":
    main()
