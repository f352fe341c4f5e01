"""Short probes of a real simulator and policy, and the cost model that they give. Weights stay as they are."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from embodied_rl.learner.learner import TrainablePolicy
from embodied_rl.rollout.actor import Actor
from embodied_rl.rollout.episode import Running, decision_rng
from embodied_rl.scheduler.costs import Cost, Costs, fit
from embodied_rl.threads import set_torch_threads, shared_cores
from embodied_rl.types import ActOutput, EpisodeSpec, Observation
from embodied_rl.vec_env import VecEnv

IN_TURN, SIDE_BY_SIDE, APART = "in turn", "side by side", "apart"
"""Placements: stages follow each other and each has the whole machine, or they share it, or share it but for acting,
which has a device of its own."""
CPU = "cpu"
LEARN_ROWS = (8, 16, 32)


@dataclass(frozen=True, slots=True)
class Probes:
    """(rows, seconds) of single calls on one thread, of acting also on all, and how many decisions episodes took."""

    simulate: list[tuple[int, float]]
    act: list[tuple[int, float]]
    act_all: list[tuple[int, float]]
    learn: list[tuple[int, float]]
    lengths: list[int]

    def placements(self, cores: int, device: str, *, another: bool = False) -> dict[str, Costs]:
        """A cost model for each placement on one machine. device: where the policy lives; another: there is a second
        one of its kind.
        """
        shared = CPU if device == CPU else "gpu"
        simulate, learn = fit(CPU, self.simulate), fit(shared, self.learn)
        learn = Cost(shared, learn.row + learn.fixed / max(LEARN_ROWS), 0.0)
        own = {"learners": shared_cores(cores), "steppers": cores} if shared == CPU else {}
        found = {
            IN_TURN: Costs(simulate, fit("gpu" if shared != CPU else "all cores", self.act_all), learn, {CPU: cores}),
            SIDE_BY_SIDE: Costs(simulate, fit(shared, self.act), learn, {CPU: cores}, **own),
        }
        if another:
            found[APART] = Costs(simulate, fit(f"another {shared}", self.act), learn, {CPU: cores})
        return found


def probe(env: VecEnv, policy: TrainablePolicy, episodes: Sequence[EpisodeSpec], threads: int) -> Probes:
    """Run `episodes`, one a slot, to their end, so that rounds get smaller as episodes end; then act and learn on rows.

    threads: of torch where it has the machine to itself.
    """
    found = Probes([], [], [], [], [])
    running = {slot: Running(spec) for slot, spec in enumerate(episodes[: env.num_envs])}
    env.reset(list(running), [episode.spec for episode in running.values()])
    first: tuple[Observation, ActOutput] | None = None
    before = torch.get_num_threads()
    set_torch_threads(1)
    try:
        while running:
            slots = sorted(running)
            obs = env.new_observation(len(slots))
            seconds = _timed(lambda slots=slots, obs=obs: env.observe(slots, obs))[0]
            rng = decision_rng([running[slot] for slot in slots])
            took, act = _timed(lambda obs=obs, rng=rng: policy.act(obs, rng, "sample"))
            if first is None:
                first = obs, act
            else:  # the first call of all also warms up
                found.act.append((len(slots), took))
            took, result = _timed(lambda slots=slots, act=act: env.step(slots, act.actions))
            if found.act:
                found.simulate.append((len(slots), seconds + took))
            over = result.terminated | result.truncated | result.failed
            for row, slot in enumerate(slots):
                running[slot].num_decisions += 1
                if over[row]:
                    found.lengths.append(running.pop(slot).num_decisions)
        assert first is not None
        found.learn.extend(_learn(policy, *first))
        set_torch_threads(threads)
        found.act_all.extend(_act_all(policy, first[0], threads))
    finally:
        set_torch_threads(before)
    return found


def _act_all(policy: TrainablePolicy, obs: Observation, threads: int) -> list[tuple[int, float]]:
    rows = len(obs.instruction)
    found = []
    with closing(Actor(policy, rows, threads)) as actor:
        for count in sorted({1, max(1, rows // 4), max(1, rows // 2), rows}):
            part = Observation(obs.images[:count], obs.proprio[:count], obs.instruction[:count])
            rng = decision_rng([Running(EpisodeSpec(0, "", 0, 0, 0))] * count)
            took = min(_timed(lambda part=part, rng=rng: actor.act(part, rng, "sample"))[0] for _ in "12")
            found.append((count, took))
    return found


def _learn(policy: TrainablePolicy, obs: Observation, act: ActOutput) -> list[tuple[int, float]]:
    """Forward and backward passes; gradients are dropped."""
    trained = [parameter for _, parameter in policy.named_parameters() if parameter.requires_grad]
    found = []
    for rows in (LEARN_ROWS[0], *LEARN_ROWS):
        index = torch.arange(rows) % len(obs.instruction)

        def step(index: torch.Tensor = index) -> None:
            out = policy.evaluate(
                torch.from_numpy(obs.images)[index], torch.from_numpy(obs.proprio)[index],
                [obs.instruction[i] for i in index.tolist()], {key: value.cpu()[index] for key, value in
                                                               act.replay.items()},
            )  # fmt: skip
            loss = out.log_prob.sum() + (out.value.sum() if out.value is not None else 0.0)
            gradients = torch.autograd.grad(loss, trained, allow_unused=True)
            for gradient in gradients:
                if gradient is not None:
                    float(gradient.flatten()[0])  # waits for a GPU
                    break

        found.append((rows, _timed(step)[0]))
    return found[1:]


def _timed(call: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    result = call()
    return time.perf_counter() - began, result


def length_of(lengths: Sequence[int]) -> Callable[[EpisodeSpec], int]:
    """Lengths of other episodes, drawn from those that were seen."""
    seen = np.sort(np.array(lengths))
    return lambda spec: int(seen[spec.seed % len(seen)])
