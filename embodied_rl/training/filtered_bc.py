"""Filtered behaviour cloning: rounds of episodes with the policy, then imitation of what succeeded in them.

Each round every episode is stored before it is learned from. Then the policy imitates demonstrations and its own
successes of all rounds (self-imitation: Oh et al. 2018), by its own imitation loss. What a step learns from depends on
the seed, the round and the step, and on the stored episodes by key: never on when they arrived.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from embodied_rl.algorithms.config import ImitateConfig
from embodied_rl.data import layout
from embodied_rl.data.chunks import ChunkDataset, split
from embodied_rl.data.episodes import EpisodeInfo, EpisodeStore
from embodied_rl.data.layout import ACTION, STATE, DatasetSpec, Episode
from embodied_rl.data.lerobot import Demonstrations
from embodied_rl.data.mixture import Mixture, Part
from embodied_rl.errors import UserError
from embodied_rl.learner.config import LearnerConfig
from embodied_rl.learner.imitation import Demos, imitation_loss, pieces
from embodied_rl.learner.types import NonFiniteError, TrainablePolicy
from embodied_rl.policy import ActMode
from embodied_rl.rng import DataStream, DecisionRng, RunStream, philox
from embodied_rl.rollout.env_runner import EnvRunner
from embodied_rl.rollout.metrics import empty_batch, episode_metrics
from embodied_rl.rollout.recording import RecordedEpisode, RecordingVecEnv
from embodied_rl.rollout.retries import FailureCause
from embodied_rl.rollout.sampler import EpisodeSampler
from embodied_rl.scheduler.base import Callbacks
from embodied_rl.training.candidates import ProposingPolicy, candidates_of
from embodied_rl.types import EpisodeResult, EpisodeSpec, RolloutBatch
from embodied_rl.utils.profiler import Profiler
from embodied_rl.utils.words import same_rate
from embodied_rl.vec_env import EnvInfo, VecEnv

STORE = "rollouts"
"""Where a run's folder has its episodes."""
_WARMUP_STEPS = 50
_LAST_RATE = 0.05
"""Share of the learning rate that a round ends with."""
_SEEDS = 2**62


class RoundScheduler:
    """A `scheduler.base.Scheduler` whose batches are rounds of stored episodes, without rows.

    Episodes of a round that are stored already, of the same start and the same weights, are not run again: a run that
    was killed goes on with them.

    Args:
        env: where episodes run.
        policy: that acts, and learns between rounds. What a `ProposingPolicy` draws is kept with the episodes.
        sampler: says which episodes; groups of one.
        store: where they go.
        profiler: of the run.
        callbacks: see `Callbacks`.
        episodes: of a round.
        mode: how the policy acts.
    """

    def __init__(
        self,
        env: VecEnv,
        policy: TrainablePolicy | ProposingPolicy,
        sampler: EpisodeSampler,
        store: EpisodeStore,
        profiler: Profiler,
        callbacks: Callbacks,
        *,
        episodes: int,
        mode: ActMode,
    ) -> None:
        self._policy, self._sampler, self._store, self._episodes = policy, sampler, store, episodes
        self._mode: ActMode = mode
        self._on_episode = callbacks.on_episode
        self._recorder = RecordingVecEnv(env)
        self._proposes = isinstance(policy, ProposingPolicy)
        acts: Any = policy
        self._runner = EnvRunner(
            self._recorder, acts, profiler, record=self._proposes, on_step=callbacks.check_interrupt
        )
        self._broken: list[tuple[str, int]] = []

    def batches(self, start: int, stop: int) -> Iterator[RolloutBatch]:
        """Yield the rounds start, ..., stop - 1; the policy must have learned from each before the next."""
        for version in range(start, stop):
            yield self._round(version)

    def publish(self, version: int) -> None:
        """Nothing is copied: the policy that acts is the one that learns."""

    def paused(self) -> AbstractContextManager[None]:
        """Nothing runs in the background."""
        return nullcontext()

    def sampler_state(self) -> dict[str, Any]:
        """The position in the stream of episodes."""
        return self._sampler.state_dict()

    def close(self) -> None:
        """Nothing to stop."""

    def _round(self, version: int) -> RolloutBatch:
        digest, results, waiting = weights_digest(self._policy), dict[int, EpisodeResult](), list[EpisodeSpec]()
        for spec in [self._sampler.next_group(version)[0] for _ in range(self._episodes)]:
            wanted = EpisodeInfo(spec.task, spec.init_state, spec.seed, policy=digest)
            if self._store.has(spec.episode_id, wanted):
                self._ended(spec, _result(spec, self._store.info(spec.episode_id)), results)
            else:
                waiting.append(spec)
        following = iter(waiting)
        self._broken = []
        for trajectory in self._runner.run(lambda: next(following, None), self._again, self._mode):
            result = trajectory.result
            recorded = self._recorder.take(result.spec)
            kept = candidates_of(trajectory.steps, recorded.calls) if self._proposes else None
            self._store.add(*stored_episode(recorded, result, digest), kept)
            self._runner.store.release(trajectory.steps)
            self._ended(result.spec, result, results)
        self._sampler.broken.add(version, self._broken)
        self._sampler.broken.check(self._sampler.position, ())
        if not results:
            raise UserError(f"every episode of round {version + 1} broke the simulator: mend it, or leave states out.")
        batch = empty_batch(version)
        batch.episodes = [results[key] for key in sorted(results)]
        steps = sum(result.num_steps for result in batch.episodes)
        batch.info = episode_metrics(batch.episodes) | self._sampler.close_batch(version, batch.episodes)
        batch.info["rollout/robot_minutes"] = steps / self._recorder.info.control_hz / 60
        return batch

    def _again(self, spec: EpisodeSpec, cause: FailureCause) -> EpisodeSpec | None:
        """What to run in place of an episode that was lost; None where it broke the simulator in every attempt."""
        again = self._sampler.requeue(spec, cause)
        if again is None:
            self._sampler.finish(spec)
            self._broken.append((spec.task, spec.init_state))
        return again

    def _ended(self, spec: EpisodeSpec, result: EpisodeResult, results: dict[int, EpisodeResult]) -> None:
        self._sampler.finish(spec)
        results[spec.episode_id] = result
        self._on_episode(result)


class FilteredBC:
    """The learner of filtered behaviour cloning: it imitates demonstrations and stored successes.

    Half of a batch (`ImitateConfig.demo_share`) or more are demonstrations; no frame of an own success is drawn more
    often than a demonstration's, so that the first of them is not learned by heart. Where a person helped, the person's
    frames alone are imitated. Each round begins with a fresh AdamW; its learning rate rises, and falls by a cosine.

    Args:
        policy: with `sft_loss`.
        config: of the algorithm.
        learner: learning rate, batch and gradient clipping.
        demos: the demonstrations.
        episodes: the run's, which come round by round; or such as were recorded before, the same in every round.
        seed: of the run.
    """

    update_in_progress = False

    def __init__(
        self,
        policy: TrainablePolicy,
        config: ImitateConfig,
        learner: LearnerConfig,
        demos: Demos,
        episodes: EpisodeStore | Demonstrations,
        seed: int,
    ) -> None:
        self.version = 0
        self._policy: Any = policy
        self._config, self._learner, self._demos, self._episodes, self._seed = config, learner, demos, episodes, seed

    def update(self, batch: RolloutBatch) -> dict[str, float]:
        """Learn from what is stored up to the last episode of `batch`; return metrics, means over the steps.

        Raises:
            NonFiniteError: a loss or gradient is not finite; no step was taken with it.
        """
        self.version += 1
        data = self._data(batch)
        return {"train/episodes_seen": float(len(data))} | self._learn(data)

    def _learn(self, data: Demonstrations) -> dict[str, float]:
        """Imitate the demonstrations and what is worth it of `data`."""
        own = own_successes(data, self._demos.mixture.parts[0].samples.chunk_len)
        mixture, share = self._mixture(own)
        seed = int(philox(self._seed, RunStream.IMITATION, self.version).integers(_SEEDS))
        adam = torch.optim.AdamW(
            [parameter for _, parameter in self._policy.named_parameters() if parameter.requires_grad],
            betas=self._learner.betas,
            weight_decay=self._learner.weight_decay,
        )
        sums = np.zeros(2)
        for step in range(self._config.steps):
            for group in adam.param_groups:
                group["lr"] = self._learner.lr * rate(step, self._config.steps)
            sums += self._step(adam, mixture, seed, step)
        loss, norm = sums / self._config.steps
        return {
            "train/loss": loss,
            "train/grad_norm": norm,
            "train/steps": float(self._config.steps),
            "train/own_successes": float(len(np.unique(own.episode[own.rows]))),
            "train/own_share": share,
        }

    def _data(self, batch: RolloutBatch) -> Demonstrations:
        """What is stored up to the last episode of `batch`."""
        if isinstance(self._episodes, Demonstrations):
            return self._episodes
        last = batch.episodes[-1].spec.episode_id
        data = self._episodes.at(sum(key <= last for key in self._episodes.keys()))  # noqa: SIM118
        data.own_units = self._demos.mixture.parts[0].samples.data.own_units
        return data

    def _mixture(self, own: ChunkDataset) -> tuple[Mixture, float]:
        """What is imitated, and the share of the samples that are the policy's own."""
        demos = self._demos.mixture.parts
        share = min(1.0 - self._config.demo_share, len(own) / (len(own) + len(self._demos.mixture)))
        if share == 0.0:
            return self._demos.mixture, 0.0
        whole = sum(part.weight for part in demos)
        parts = [replace(part, weight=part.weight / whole * (1.0 - share)) for part in demos]
        return Mixture([*parts, Part(own, parts[0].key, share)]), share

    def _step(self, adam: torch.optim.AdamW, mixture: Mixture, seed: int, step: int) -> tuple[float, float]:
        """One optimiser step; its loss and gradient norm, before clipping."""
        size, most = self._learner.minibatch_size, self._learner.microbatch_size
        assert size is not None, "`check_imitate` refuses minibatch_groups"
        batches = mixture.batch(step, size, seed, self._demos.change)
        noise = philox(seed, DataStream.LOSS_NOISE, step).integers(_SEEDS, size=size)
        adam.zero_grad(set_to_none=True)
        total, first = 0.0, 0
        for batch in batches:
            for index, share in pieces(batch, 0, 1, most):
                seeds = noise[first + index.numpy()]
                rng = DecisionRng(seeds, np.zeros_like(seeds))
                loss = imitation_loss(self._policy, batch.rows(index), rng) * (share * len(batch) / size)
                loss.backward()
                total += float(loss.detach())
            first += len(batch)
        moving = [parameter for group in adam.param_groups for parameter in group["params"]]
        norm = float(torch.nn.utils.clip_grad_norm_(moving, self._learner.max_grad_norm))
        if not math.isfinite(total + norm):
            raise NonFiniteError(
                f"step {step + 1} of round {self.version} is not finite (loss {total}, gradient {norm}): begin a new "
                "run with a lower --learner.lr."
            )
        adam.step()
        return total, norm

    def state_dict(self) -> dict[str, Any]:
        """The number of rounds and the digest of the demonstrations: a round's optimiser ends with it."""
        return {"version": self.version, "demos": self._demos.digest}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state`, with the weights that the policy has now; UserError where demonstrations changed."""
        if state["demos"] != self._demos.digest:
            recorded = isinstance(self._episodes, Demonstrations)
            what = "--data is no longer that" if recorded else "--demos are no longer those"
            raise UserError(f"{what} of the run: bring these data sets back, or begin a new run.")
        self.version = int(state["version"])

    def close(self) -> None:
        """Nothing to end."""


def own_successes(data: Demonstrations, chunk_len: int) -> ChunkDataset:
    """The frames of stored episodes that are worth imitating: of successes, and where a person helped the person's."""
    samples, _ = split(data, chunk_len, validation=0.0, seed=0)
    human = data.columns.human
    helped = np.logical_or.reduceat(human, data.starts[:-1])[samples.episode]
    worth = data.success[samples.episode] & (human | ~helped)
    return replace(samples, rows=samples.rows[worth[samples.rows]])


def rate(step: int, steps: int) -> float:
    """Share of the learning rate at `step` (0-based) of a round of `steps`."""
    rise = min(1.0, (step + 1) / min(_WARMUP_STEPS, steps))
    return rise * (_LAST_RATE + (1.0 - _LAST_RATE) * 0.5 * (1.0 + math.cos(math.pi * step / steps)))


def weights_digest(policy: TrainablePolicy | ProposingPolicy) -> str:
    """SHA-256 of a policy's weights and buffers: who acted in an episode."""
    digest = hashlib.sha256()
    for name, value in sorted(policy.state_dict().items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def open_run_store(run_dir: Path, info: EnvInfo, demos: Demos, candidates: int = 0) -> EpisodeStore:
    """The store of a run's episodes, in its folder. candidates: chunks that are kept of a decision.

    Raises:
        UserError: what the simulator shows has no place in a data set, or the store is of other demonstrations.
    """
    spec = frames_of(info, demos.mixture.parts[0].samples.data.info)
    kept = {"candidates": candidates} if candidates else {}
    return EpisodeStore(run_dir / STORE, spec, {"demonstrations": demos.digest} | kept)


def frames_of(info: EnvInfo, said: dict[str, Any]) -> DatasetSpec:
    """What the frames of a simulator's episodes hold.

    Args:
        info: of the simulator.
        said: info.json of a data set of the same robot, which names the numbers of its features; {} without one.

    Raises:
        UserError: LeRobot's layout has no place for them.
    """
    (height, width), fps = info.image_shape, round(info.control_hz)
    if fps < 1 or not same_rate(fps, info.control_hz):
        raise UserError(
            f"episodes are kept in LeRobot's layout, which needs a whole number of control steps a second: suite "
            f"'{info.suite}' has {info.control_hz:g}."
        )
    return DatasetSpec(
        info.cameras,
        height if height == width else (height, width),
        _names(said, STATE, info.proprio_dim),
        _names(said, ACTION, info.action_dim),
        fps,
        str(said.get("robot_type", "unknown")),
    )


def _names(info: dict[str, Any], feature: str, count: int) -> tuple[str, ...]:
    """What the numbers of a feature are called in the demonstrations, which are of the same robot."""
    names = info.get("features", {}).get(feature, {}).get("names")
    if isinstance(names, list) and len(names) == count and all(isinstance(name, str) for name in names):
        return tuple(names)
    return tuple(f"{feature.rpartition('.')[2]}_{k}" for k in range(count))


def stored_episode(recorded: RecordedEpisode, result: EpisodeResult, digest: str) -> tuple[Episode, EpisodeInfo]:
    """An episode that ended as a store takes it. digest: `weights_digest` of the policy that acted."""
    spec, count = recorded.spec, len(recorded.action)
    last = np.arange(count) == count - 1
    human, action = np.array(recorded.human), np.stack(recorded.action)
    episode = Episode(
        spec.episode_id,
        recorded.instruction,
        np.stack(recorded.images),
        np.stack(recorded.proprio),
        action,
        action,
        columns={
            layout.REWARD: np.array(recorded.reward, np.float32),
            layout.DONE: last,
            layout.SUCCESS: last & recorded.success,
            layout.INTERVENTION: human,
            layout.DECISION: np.array(recorded.decision, np.int32),
        },
    )
    info = EpisodeInfo(
        task=spec.task,
        init_state=spec.init_state,
        seed=spec.seed,
        source="mixed" if human.any() else "policy",
        success=int(result.success),
        ends_in_success=int(recorded.success),
        policy=digest,
        episode_return=result.reward,
        decisions=result.num_decisions,
        steps=result.num_steps,
        terminated=int(result.terminated),
        human_steps=result.human_steps,
        helped_success=int(result.helped_success),
    )
    return episode, info


def _result(spec: EpisodeSpec, info: EpisodeInfo) -> EpisodeResult:
    """The outcome of a stored episode, as it was when it was run."""
    return EpisodeResult(
        spec=replace(spec, seed=info.seed),
        success=info.success == 1,
        terminated=info.terminated == 1,
        truncated=info.terminated != 1,
        reward=info.episode_return,
        num_decisions=info.decisions,
        num_steps=info.steps,
        human_steps=info.human_steps,
        helped_success=info.helped_success == 1,
    )
