"""Steering: after each round a chunk critic is fitted to all stored decisions, and the policy acts by the best of N.

Candidates are those that the policy drew when it acted, kept with the episode; those of the demonstrations' frames are
drawn once, by the policy that the run began with. What the critic reads of an observation is, where the policy stays as
it is, kept in the same way: then nothing is asked of the policy again. Where it also imitates, that would be the
features of older weights; so each round's policy computes them once for all stored decisions, before the critic
learns, and the critic begins with new weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from embodied_rl.algorithms.config import SteerConfig
from embodied_rl.data.arrays import read_about, read_arrays, write_arrays
from embodied_rl.data.chunks import ChunkDataset, action_chunks
from embodied_rl.data.columns import chunk_transitions
from embodied_rl.data.episodes import EpisodeStore
from embodied_rl.data.lerobot import Demonstrations
from embodied_rl.errors import UserError
from embodied_rl.learner.config import LearnerConfig
from embodied_rl.learner.imitation import Demos
from embodied_rl.learner.types import TrainablePolicy
from embodied_rl.policies.steering import CANDIDATES, CHOSEN, SUMMARY, Steering, features_of, need_proposals
from embodied_rl.policy import ActMode
from embodied_rl.rng import DecisionRng, RunStream, philox
from embodied_rl.training.candidates import KEPT
from embodied_rl.training.chunk_critic import Decisions, fit_critic, joined
from embodied_rl.training.filtered_bc import FilteredBC, weights_digest
from embodied_rl.types import Array, Observation, RolloutBatch
from embodied_rl.utils.words import counted
from embodied_rl.vec_env import EnvInfo

_DRAWN_BY = "policy"
_SEEDS = 2**62


class SteeredBC(FilteredBC):
    """The learner of steering: filtered behaviour cloning unless it is left out, then a chunk critic.

    After each update `policy.steering` is a new one, by which the policy acts, is evaluated and saved.

    Args:
        policy: with `PolicyTraits.propose`; with `sft_loss` unless `config.imitate` is off.
        config: of the algorithm.
        learner: of the imitation; `microbatch_size` is also how many observations the policy reads at a time.
        demos: the demonstrations.
        store: the run's episodes, each with its candidates.
        seed: of the run.
        mode: how the policy acts in the run's episodes.

    Raises:
        UserError: the policy draws no chunks to choose from.
    """

    def __init__(
        self,
        policy: TrainablePolicy,
        config: SteerConfig,
        learner: LearnerConfig,
        demos: Demos,
        store: EpisodeStore,
        seed: int,
        mode: ActMode,
    ) -> None:
        super().__init__(policy, config, learner, demos, store, seed)
        need_proposals(policy)
        self._steer, self._mode = config, mode
        self._start = ""
        """Digest of the weights that the run began with."""

    def update(self, batch: RolloutBatch) -> dict[str, float]:
        """Imitate, unless the policy stays as it is, and fit a critic to what is stored; as `FilteredBC.update`."""
        kept = self._demonstrated()
        if self._steer.imitate:
            metrics = super().update(batch)
        else:
            self.version += 1
            metrics = {}
        data = self._data(batch)
        parts = [part.samples for part in self._demos.mixture.parts]
        shown = [self._of_demonstrations(samples, arrays) for samples, arrays in zip(parts, kept, strict=True)]
        decisions = joined([*shown, self._of_episodes(data)]).to(self._device)
        demonstrated = sum(len(part.at) for part in shown)
        critic, loss = fit_critic(decisions, demonstrated, self._steer.critic_steps, (self._seed, self.version))
        self._policy.steering = Steering(critic, self._steer.candidates)
        return metrics | {
            "train/episodes_seen": float(len(data)),
            "train/critic_loss": loss,
            "train/critic_chunks": float(len(decisions.at)),
        }

    @property
    def _device(self) -> torch.device:
        return next(parameter for _, parameter in self._policy.named_parameters()).device

    def _demonstrated(self) -> list[dict[str, Array]]:
        """What is kept of each data set's frames, drawn by the policy that the run begins with."""
        digest = weights_digest(self._policy) if self.version == 0 else self._start
        self._start, found = digest, []
        for number, part in enumerate(self._demos.mixture.parts):
            path = self._store.root / f"demonstrations-{number}.safetensors"
            if read_about(path).get(_DRAWN_BY) != digest:
                if self.version:
                    raise UserError(f"{path} is missing or not of this run: restore the folder, or begin a new run.")
                write_arrays(path, self._drawn(part.samples.data, number), {_DRAWN_BY: digest})
            found.append(read_arrays(path))
        return found

    def _drawn(self, data: Demonstrations, number: int) -> dict[str, Array]:
        """Summary and candidates of every frame."""
        seed = int(philox(self._seed, RunStream.CANDIDATES, number).integers(_SEEDS))
        propose, summaries, candidates = self._policy.traits.propose, list[Array](), list[Array]()
        for rows in _pieces(np.arange(len(data.state)), self._learner.microbatch_size):
            rng = DecisionRng(np.full(len(rows), seed), rows)
            found = propose(_observed(data, rows), rng, self._mode, self._steer.candidates)
            summaries.append(found.summary.float().cpu().numpy())
            chunks = found.act.actions.unflatten(0, (len(rows), self._steer.candidates))
            candidates.append(chunks.cpu().numpy())
        return {SUMMARY: np.concatenate(summaries), CANDIDATES: np.concatenate(candidates)}

    def _features(self, data: Demonstrations, rows: Array, kept: Array) -> Tensor:
        """What a critic reads at `rows`. kept: the summaries of the policy that acted there."""
        proprio = torch.from_numpy(data.state[rows])
        if not self._steer.imitate:
            return features_of(torch.from_numpy(kept), proprio)
        summaries = []
        for some in _pieces(rows, self._learner.microbatch_size):
            seen = _observed(data, some)
            summaries.append(self._policy.traits.summarise(seen.images, seen.proprio, seen.instruction).float().cpu())
        return features_of(torch.cat(summaries), proprio)

    def _of_demonstrations(self, samples: ChunkDataset, kept: dict[str, Array]) -> Decisions:
        """A chunk from every frame that `samples` imitates, to the frame a chunk later."""
        data, rows, length = samples.data, samples.rows, self._policy.chunk_len
        ends = data.starts[samples.episode[rows] + 1]
        steps = np.minimum(length, ends - rows)
        over = rows + length >= ends
        success = data.success | (not data.success.any())  # demonstrations of other programs do not say it
        won = over & success[samples.episode[rows]]
        gamma = self._steer.gamma
        return Decisions(
            self._features(data, np.arange(len(data.state)), kept[SUMMARY]),
            torch.from_numpy(kept[CANDIDATES]),
            torch.from_numpy(rows),
            torch.from_numpy(_done(data, rows, samples.episode[rows], length)),
            torch.from_numpy(np.where(won, gamma ** (steps - 1), 0.0).astype(np.float32)),
            torch.from_numpy(np.where(over, 0.0, gamma**length).astype(np.float32)),
            torch.from_numpy(np.where(over, -1, rows + length)),
        )

    def _of_episodes(self, data: Demonstrations) -> Decisions:
        """The decisions of stored episodes, each to the next; where a person acted, the chunk is what was done."""
        kept = [self._store.arrays(key) for key in self._store.keys()[: len(data)]]
        arrays = {name: np.concatenate([part[name] for part in kept]) for name in KEPT}
        columns = replace(data.columns, reward=data.columns.success.astype(np.float32))
        found = chunk_transitions(columns, data.starts, self._steer.gamma)
        count = len(found.row)
        if len(arrays[CHOSEN]) != count:
            raise UserError(
                f"{self._store.root} has {count} decisions and the candidates of {len(arrays[CHOSEN])}: restore the "
                "folder, or begin a new run."
            )
        episode = np.searchsorted(data.starts, found.row, side="right") - 1
        done = _done(data, found.row, episode, self._policy.chunk_len)
        asked = arrays[CANDIDATES][np.arange(count), arrays[CHOSEN]]
        after = np.where(found.next_row < 0, -1, np.arange(count) + 1)
        return Decisions(
            self._features(data, found.row, arrays[SUMMARY]),
            torch.from_numpy(arrays[CANDIDATES]),
            torch.arange(count),
            torch.from_numpy(np.where(found.human[:, None, None], done, asked)),
            torch.from_numpy(found.reward),
            torch.from_numpy(found.discount),
            torch.from_numpy(after),
        )

    def state_dict(self) -> dict[str, Any]:
        """As `FilteredBC.state_dict`; the critic is a part of the policy."""
        return super().state_dict() | {"start": self._start}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """As `FilteredBC.load_state_dict`."""
        super().load_state_dict(state)
        self._start = str(state["start"])


def _pieces(rows: Array, most: int) -> Iterator[Array]:
    for first in range(0, len(rows), most):
        yield rows[first : first + most]


def _observed(data: Demonstrations, rows: Array) -> Observation:
    return Observation.from_numpy(data.images[rows], data.state[rows], [data.instruction[row] for row in rows])


def _done(data: Demonstrations, rows: Array, episode: Array, length: int) -> Array:
    """float32 [R,K,A]: what was done from each of `rows` on, within its episode; as it is imitated."""
    return action_chunks(data.action, rows, data.starts[episode + 1], length, data.stays[episode])


def need_proprio(demos: Demos, info: EnvInfo) -> None:
    """UserError where demonstrations have another proprio than the simulator, both of which the critic reads."""
    for part in demos.mixture.parts:
        has = part.samples.data.state.shape[1]
        if has != info.proprio_dim:
            raise UserError(
                f"--algorithm steer: its critic reads proprio, of which --demos have {counted(has, 'number')}, and "
                f"suite '{info.suite}' {info.proprio_dim}."
            )
