"""Short probes of a real simulator and policy, and the cost model that they give. Weights stay as they are."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from embodied_rl.autotune.costs import Cost, Costs, fit
from embodied_rl.autotune.outcomes import Outcome
from embodied_rl.learner.types import TrainablePolicy
from embodied_rl.rollout.actor import ParallelActor
from embodied_rl.rollout.episode import ActiveEpisode, decision_rng
from embodied_rl.types import ActOutput, EpisodeSpec, EvalOutput, Observation
from embodied_rl.utils.threads import set_torch_threads, shared_cores
from embodied_rl.vec_env import VecEnv

IN_TURN, SIDE_BY_SIDE, APART = "in turn", "side by side", "apart"
"""Placements: stages follow each other and each has the whole machine, or they share it, or share it but for acting,
which has a device of its own."""
CPU = "cpu"
LEARN_ROWS = (8, 16, 32)
Now = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Probes:
    """(rows, seconds) of single calls on one thread, of acting also on all, and how episodes went.

    learn: forward and backward passes over micro-batches; evaluate: forward passes alone; step: seconds of an
    optimiser step.
    """

    simulate: list[tuple[int, float]]
    act: list[tuple[int, float]]
    act_all: list[tuple[int, float]]
    learn: list[tuple[int, float]]
    outcomes: list[Outcome]
    evaluate: list[tuple[int, float]] = field(default_factory=list)
    step: float = 0.0

    @property
    def mean_length(self) -> float:
        """Decisions of an episode, on average."""
        return sum(outcome.decisions for outcome in self.outcomes) / len(self.outcomes)

    @property
    def success(self) -> float:
        """Share of the episodes that succeeded."""
        return sum(outcome.success for outcome in self.outcomes) / len(self.outcomes)

    def placements(self, cores: int, device: str, *, another: bool = False) -> dict[str, Costs]:
        """A cost model for each placement on one machine. device: where the policy lives; another: there is a second
        one of its kind.
        """
        shared = CPU if device == CPU else "gpu"
        simulate, learn = fit(CPU, self.simulate), fit(shared, self.learn)
        evaluate = fit(shared, self.evaluate) if self.evaluate else None

        def costs(act: Cost, learners: int | None = None, steppers: int = 1, *, again: str = shared) -> Costs:
            return Costs(
                simulate,
                act,
                Cost(shared, learn.row, self.step),
                {CPU: cores},
                learners,
                steppers,
                learn_call=learn.fixed,
                evaluate=evaluate and replace(evaluate, device=again),
            )

        own = (shared_cores(cores), cores) if shared == CPU else ()
        found = {
            IN_TURN: costs(fit("gpu" if shared != CPU else "all cores", self.act_all)),
            SIDE_BY_SIDE: costs(fit(shared, self.act), *own),
        }
        if another:
            act = fit(f"another {shared}", self.act)
            found[APART] = costs(act, again=act.device)
        return found


def probe(
    env: VecEnv, policy: TrainablePolicy, episodes: Sequence[EpisodeSpec], threads: int, now: Now = time.perf_counter
) -> Probes:
    """Run `episodes`, one a env, to their end, so that rounds get smaller as episodes end; then act and learn on rows.

    threads: of torch where it has the machine to itself. now: the time.
    """
    found = Probes([], [], [], [], [])
    before = torch.get_num_threads()
    set_torch_threads(1)
    try:
        obs, act = _wave(env, policy, episodes, found, now)
        trained = [parameter for _, parameter in policy.named_parameters() if parameter.requires_grad]
        try:
            steps, evaluations = _learn(policy, obs, act, trained, now)
            found.learn.extend(steps)
            found.evaluate.extend(evaluations)
            step = _optimiser_step(trained, now)
        finally:
            for parameter in trained:
                parameter.grad = None
        set_torch_threads(threads)
        found.act_all.extend(_act_all(policy, obs, threads, now))
    finally:
        set_torch_threads(before)
    return replace(found, step=step)


def _wave(
    env: VecEnv, policy: TrainablePolicy, episodes: Sequence[EpisodeSpec], found: Probes, now: Now
) -> tuple[Observation, ActOutput]:
    """Run the episodes; return what the first decision saw and was."""
    running = {env_id: ActiveEpisode(spec) for env_id, spec in enumerate(episodes[: env.num_envs])}
    env.reset(list(running), [episode.spec for episode in running.values()])
    first: tuple[Observation, ActOutput] | None = None
    while running:
        env_ids = sorted(running)
        obs = env.new_observation(len(env_ids))
        seconds = _timed(lambda env_ids=env_ids, obs=obs: env.observe(env_ids, obs), now)[0]
        rng = decision_rng([running[env_id] for env_id in env_ids])
        took, act = _timed(lambda obs=obs, rng=rng: policy.act(obs, rng, "sample"), now)
        if first is None:
            first = obs, act
        else:  # the first call of all also warms up
            found.act.append((len(env_ids), took))
        took, result = _timed(lambda env_ids=env_ids, act=act: env.step(env_ids, act.actions), now)
        if found.act:
            found.simulate.append((len(env_ids), seconds + took))
        over = result.terminated | result.truncated | result.failed
        for row, env_id in enumerate(env_ids):
            running[env_id].num_decisions += 1
            if over[row]:
                ended = running.pop(env_id)
                found.outcomes.append(Outcome(ended.spec.group, ended.num_decisions, bool(result.success[row])))
    assert first is not None
    return first


def _act_all(policy: TrainablePolicy, obs: Observation, threads: int, now: Now) -> list[tuple[int, float]]:
    rows = len(obs.instruction)
    found = []
    with closing(ParallelActor(policy, rows, threads)) as actor:
        for count in sorted({1, max(1, rows // 4), max(1, rows // 2), rows}):
            part = obs.rows(slice(0, count))
            rng = decision_rng([ActiveEpisode(EpisodeSpec(0, "", 0, 0, 0))] * count)
            found.append((count, _best(lambda part=part, rng=rng: actor.act(part, rng, "sample"), now)))
    return found


def _learn(
    policy: TrainablePolicy, obs: Observation, act: ActOutput, trained: list[nn.Parameter], now: Now
) -> tuple[list[tuple[int, float]], list[tuple[int, float]]]:
    """Micro-batches of several sizes, with a backward pass, whose gradients are left to add up, and without."""
    learn, evaluate = [], []
    replay = {key: value.cpu() for key, value in act.replay.items()}
    for rows in (LEARN_ROWS[0], *LEARN_ROWS):  # the first also warms up
        index = torch.arange(rows) % len(obs.instruction)

        def forward(index: torch.Tensor = index) -> EvalOutput:
            return policy.evaluate(
                obs.images[index],
                obs.proprio[index],
                [obs.instruction[i] for i in index.tolist()],
                {key: value[index] for key, value in replay.items()},
            )

        def both(forward: Callable[[], EvalOutput] = forward) -> None:
            out = forward()
            loss = out.log_prob.sum() + (out.value.sum() if out.value is not None else 0.0)
            loss.backward(inputs=trained)
            _wait_for(next(parameter.grad for parameter in trained if parameter.grad is not None))

        def alone(forward: Callable[[], EvalOutput] = forward) -> None:
            with torch.no_grad():
                _wait_for(forward().log_prob)

        learn.append((rows, _best(both, now)))
        evaluate.append((rows, _best(alone, now)))
    return learn[1:], evaluate[1:]


def _optimiser_step(trained: list[nn.Parameter], now: Now) -> float:
    """Clip and step as the learner does, with gradients and learning rates of 0: weights stay as they are."""
    for parameter in trained:
        parameter.grad = torch.zeros_like(parameter)
    optimizer = torch.optim.AdamW(trained, lr=0.0, weight_decay=0.0)

    def step() -> None:
        nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        _wait_for(trained[0])

    return _best(step, now)  # the first makes room for the moments


def _wait_for(tensor: torch.Tensor) -> None:
    """Until a GPU has computed it."""
    tensor.detach().flatten()[0].item()


def _best(call: Callable[[], Any], now: Now) -> float:
    """The shorter one of two times: the other one may have been held up."""
    return min(_timed(call, now)[0] for _ in "12")


def _timed(call: Callable[[], Any], now: Now) -> tuple[float, Any]:
    began = now()
    result = call()
    return now() - began, result
