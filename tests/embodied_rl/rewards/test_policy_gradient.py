"""A judge's differences leave the policy's gradient what it is without them: small decision processes, all episodes.

Every episode of a tree of decisions is a part of the batch, weighted by its probability, and the critic is exact. The
expected gradient of `relabel` and `gae` is held against that of the values of actions, which no advantage enters.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor

from embodied_rl.algorithms.advantages import gae
from embodied_rl.rewards.relabel import ProgressReward, SuccessReward
from embodied_rl.types import Array, EpisodeResult, EpisodeSpec, RolloutBatch

Way = Literal["beside", "alone", "bootstrap"]


@dataclass
class Node:
    """What is seen before a decision, or at the end: without actions."""

    progress: float
    probability: list[float] = field(default_factory=list)
    reward: list[float] = field(default_factory=list)
    following: list[Node] = field(default_factory=list)
    done: float = 0.0
    truncated: bool = False
    value: float = 0.0
    """At an end that is truncated: what the simulator would still have paid."""


@dataclass
class Path:
    """An episode: its decisions' nodes and actions, its end and its probability."""

    nodes: list[Node]
    actions: list[int]
    end: Node
    probability: float


class Told:
    """A judge that reads off a picture which node it shows."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = nodes

    def progress(self, images: Tensor, instruction: list[str]) -> Tensor:
        assert len(images) == len(instruction)
        return torch.tensor([self._nodes[number].progress for number in numbers(images)])

    def done(self, images: Tensor, instruction: list[str]) -> Tensor:
        assert len(images) == len(instruction)
        return torch.tensor([self._nodes[number].done for number in numbers(images)])

    def drain(self) -> dict[str, float]:
        return {}


def numbers(images: Tensor) -> list[int]:
    low, high, _ = images.reshape(-1, 3).long().unbind(1)
    return (low + 256 * high).tolist()


def picture(number: int) -> list[int]:
    return [number % 256, number // 256, 0]


def all_nodes(node: Node) -> list[Node]:
    return [node, *(each for child in node.following for each in all_nodes(child))]


def paths(node: Node, before: Path | None = None) -> Iterator[Path]:
    before = before or Path([], [], node, 1.0)
    if not node.following:
        yield replace(before, end=node)
    for action, (probability, child) in enumerate(zip(node.probability, node.following, strict=True)):
        if probability:
            longer = Path([*before.nodes, node], [*before.actions, action], child, before.probability * probability)
            yield from paths(child, longer)


def batch_of(root: Node, way: Way) -> tuple[RolloutBatch, list[Path], list[Node]]:
    nodes, episodes = all_nodes(root), list(paths(root))
    place = {id(node): number for number, node in enumerate(nodes)}
    seen = [place[id(node)] for path in episodes for node in path.nodes]
    results = [
        EpisodeResult(
            EpisodeSpec(number, "tree", 0, number, number),
            success=path.end.done >= 0.5,
            terminated=not path.end.truncated,
            truncated=path.end.truncated,
            reward=0.0,
            num_decisions=len(path.nodes),
            num_steps=len(path.nodes),
        )
        for number, path in enumerate(episodes)
    ]
    images = torch.tensor([picture(number) for number in seen], dtype=torch.uint8).reshape(-1, 1, 1, 1, 3)
    ends = torch.tensor([picture(place[id(path.end)]) for path in episodes], dtype=torch.uint8).reshape(-1, 1, 1, 1, 3)
    rewards = [node.reward[action] for path in episodes for node, action in zip(path.nodes, path.actions, strict=True)]
    batch = RolloutBatch(
        images=images,
        proprio=torch.zeros(len(seen), 0),
        instruction=["go"] * len(seen),
        replay={},
        log_prob=torch.zeros(len(seen), 1),
        value=None,
        reward=torch.tensor(rewards),
        mask=torch.ones(len(seen), 1, dtype=torch.bool),
        episode=torch.repeat_interleave(torch.arange(len(episodes)), torch.tensor([len(p.nodes) for p in episodes])),
        episodes=results,
        final_images=None if way == "beside" else ends,
    )
    return batch, episodes, nodes


def known(path: Path) -> list[float]:
    """phi before each decision and at the end: what was seen last, less what was seen first."""
    found, first, last = [], math.nan, 0.0
    for node in (*path.nodes, path.end):
        if not math.isnan(node.progress):
            first = node.progress if math.isnan(first) else first
            last = node.progress - first
        found.append(last)
    return found


def learned(root: Node, way: Way, gamma: float, gae_lambda: float, weight: float) -> dict[int, Array]:
    """The expected gradient of the log-probability of each node's actions times their advantages, by node."""
    batch, episodes, nodes = batch_of(root, way)
    judge = Told(nodes)
    if way == "alone":
        found = SuccessReward(judge, gamma=gamma, weight=weight, has_success=True).relabel(batch)
    else:
        found = ProgressReward(judge, gamma=gamma, weight=weight, bootstrap=way == "bootstrap").relabel(batch)
    if way == "bootstrap":  # the critic's value of what is shown last: that of the simulator, less the potential there
        found.episodes = [
            replace(each, final_value=path.end.value - weight * known(path)[-1]) if each.truncated else each
            for each, path in zip(found.episodes, episodes, strict=True)
        ]
    totals, weights = dict.fromkeys(map(id, nodes), 0.0), dict.fromkeys(map(id, nodes), 0.0)
    row = len(found)
    for path, episode in zip(reversed(episodes), reversed(found.episodes), strict=True):
        to_go = episode.final_value
        for node in reversed(path.nodes):
            row -= 1
            to_go = float(found.reward[row]) + gamma * to_go
            totals[id(node)] += path.probability * to_go
            weights[id(node)] += path.probability
    critic = {node: totals[node] / weights[node] for node in totals if weights[node]}
    value = torch.tensor([critic[id(node)] for path in episodes for node in path.nodes])
    advantage, _ = gae(found.reward, value, found.episodes, gamma, gae_lambda)
    gradient = {id(node): np.zeros(len(node.following)) for node in nodes}
    for path in episodes:
        for node, action in zip(path.nodes, path.actions, strict=True):
            score = np.eye(len(node.following))[action] - np.array(node.probability)
            gradient[id(node)] += path.probability * float(advantage[row]) * score
            row += 1
    return gradient


def true_gradient(root: Node, way: Way, gamma: float) -> dict[int, Array]:
    """By the values of actions: reach(n) pi(a|n) (Q(n, a) - V(n)) of each node's logits."""
    found: dict[int, Array] = {}

    def visit(node: Node, reach: float) -> float:
        if not node.following:
            return node.value if way == "bootstrap" and node.truncated else 0.0
        pi, q = np.array(node.probability), np.zeros(len(node.following))
        for action, child in enumerate(node.following):
            paid = node.reward[action]
            if way == "alone":
                paid = float(not child.following and child.done >= 0.5)
            q[action] = paid + gamma * visit(child, reach * pi[action])
        value = float(pi @ q)
        found[id(node)] = reach * pi * (q - value)
        return value

    visit(root, 1.0)
    return found


def assert_same(root: Node, way: Way, gamma: float, gae_lambda: float, weight: float) -> None:
    wanted, found = true_gradient(root, way, gamma), learned(root, way, gamma, gae_lambda, weight)
    for node, gradient in wanted.items():
        np.testing.assert_allclose(found[node], gradient, atol=1e-6, rtol=0)


def chain(length: int, end: Node, rng: np.random.Generator, last: float) -> Node:
    """`length` decisions with a single action, then the end, to which the step pays `last`."""
    node = end
    for step in range(length):
        node = Node(float(rng.random()), [1.0], [last if step == 0 else 0.0], [node])
    return node


def one_decision(phi: float, left: int, before: int) -> tuple[Node, Node]:
    """A decision, seen at progress `phi`, after which an episode has `left` decisions more and succeeds, or fails."""
    rng = np.random.default_rng(left)
    won, lost = (chain(left, Node(1.0, done=float(paid)), rng, paid) for paid in (1.0, 0.0))
    decision = Node(phi, [0.5, 0.5], [0.0, 0.0], [won, lost])
    root = decision
    for step in range(before):
        root = Node(phi * (before - 1 - step) / before, [1.0], [0.0], [root])
    return root, decision


@pytest.mark.parametrize(("phi", "left", "wanted"), [(0.5, 5, 0.238), (0.98, 60, 0.137)])
@pytest.mark.parametrize("way", ["beside", "alone"])
@pytest.mark.parametrize("weight", [0.25, 0.5, 1.0, 3.0])
@pytest.mark.parametrize("before", [1, 7])
def test_a_decision_that_brings_success_is_told_so(
    phi: float, left: int, wanted: float, way: Way, weight: float, before: int
) -> None:
    """p (1 - p) gamma^left for the probability's logit: 0.25 x 0.951 and 0.25 x 0.547, whatever the weight."""
    root, decision = one_decision(phi, left, before)
    for gae_lambda in (1.0, 0.95):
        gradient = learned(root, way, 0.99, gae_lambda, weight)[id(decision)]
        assert gradient[0] == pytest.approx(0.25 * 0.99**left, abs=1e-6)
        assert gradient[0] == pytest.approx(wanted, abs=5e-4)
        assert_same(root, way, 0.99, gae_lambda, weight)


def tree(rng: np.random.Generator, depth: int, unknown: float) -> Node:
    """Any number of decisions up to `depth`, any progress (or none), rewards on the way, ends of every kind."""
    progress = math.nan if rng.random() < unknown else float(rng.random())
    if depth == 0 or (depth < 4 and rng.random() < 0.25):
        # time has run out for some, and the judge does not always know
        done = math.nan if rng.random() < unknown else float(rng.random() < 0.5)
        return Node(progress, done=done, truncated=bool(rng.random() < 0.4), value=float(rng.random()))
    count = int(rng.integers(1, 4))
    children = [tree(rng, depth - 1, unknown) for _ in range(count)]
    rewards = [float(np.float32(rng.normal())) for _ in range(count)]
    return Node(progress, (rng.dirichlet(np.ones(count))).tolist(), rewards, children)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("way", ["beside", "alone", "bootstrap"])
@pytest.mark.parametrize("unknown", [0.0, 0.3])
def test_the_gradient_is_that_without_a_judge(seed: int, way: Way, unknown: float) -> None:
    """Also where a judge does not know how far an episode has come, from some frame on or now and then."""
    root = tree(np.random.default_rng(seed), 4, unknown)
    for gamma, gae_lambda, weight in ((0.99, 0.95, 0.25), (0.9, 1.0, 1.0), (1.0, 0.5, 3.0), (0.95, 0.0, 3.0)):
        assert_same(root, way, gamma, gae_lambda, weight)


def test_the_judges_differences_are_there() -> None:
    """They move credit: without a critic's help the decision before the progress is paid at once."""
    root, _ = one_decision(0.5, 5, 1)
    batch, _, nodes = batch_of(root, "beside")
    found = ProgressReward(Told(nodes), gamma=0.99, weight=2.0).relabel(batch)
    assert found.reward[0] == pytest.approx(2.0 * 0.99 * 0.5)
