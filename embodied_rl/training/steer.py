"""Steering: after each round a chunk critic is fitted to all stored decisions, and the policy acts by the best of N.

Candidates are those that the policy drew when it acted, kept with the episode. Those of the demonstrations' frames, and
of episodes that were recorded before the run, are drawn once, by the policy that the run began with. What the critic
reads of an observation is, where the policy stays as it is, kept in the same way: then nothing is asked of the policy
again. Where it also imitates, that would be the features of older weights; so each round's policy computes them once
for all decisions, before the critic learns, and the critic begins with new weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
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
from embodied_rl.types import Array, Observation

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
        episodes: the run's, each with its candidates; or such as were recorded before, without.
        seed: of the run.
        mode: how the policy acts in the run's episodes.
        kept: folder of what is drawn once.

    Raises:
        UserError: the policy draws no chunks to choose from.
    """

    def __init__(
        self,
        policy: TrainablePolicy,
        config: SteerConfig,
        learner: LearnerConfig,
        demos: Demos,
        episodes: EpisodeStore | Demonstrations,
        seed: int,
        mode: ActMode,
        kept: Path,
    ) -> None:
        super().__init__(policy, config, learner, demos, episodes, seed)
        need_proposals(policy)
        self._steer, self._mode, self._kept = config, mode, kept
        self._start = ""
        """Digest of the weights that the run began with."""
        recorded = isinstance(episodes, Demonstrations)  # a store itself sees to it that these stay the same
        drawn = {"data": demos.digest, "candidates": str(config.candidates), "seed": str(seed), "mode": mode}
        self._of = drawn if recorded else {}

    def _learn(self, data: Demonstrations) -> dict[str, float]:
        """Imitate, unless the policy stays as it is, and fit a critic to all decisions; as `FilteredBC._learn`."""
        if self.version == 1:
            self._start = weights_digest(self._policy)
        parts, length = [part.samples for part in self._demos.mixture.parts], self._policy.chunk_len
        places = [(f"demonstrations-{n}", each.data, np.arange(len(each.data.state))) for n, each in enumerate(parts)]
        if isinstance(self._episodes, Demonstrations):
            places.append(("recorded", data, decided(data, length)))
        kept = [self._once(number, *place) for number, place in enumerate(places)]  # before the policy learns
        metrics = super()._learn(data) if self._steer.imitate else {}
        found = [self._of_demonstrations(samples, arrays) for samples, arrays in zip(parts, kept, strict=False)]
        demonstrated = sum(len(part.at) for part in found)
        if isinstance(self._episodes, Demonstrations):
            rows = decided(data, length)
            found.append(self._chunks(data, rows, rows, data.success, kept[-1]))
        else:
            found.append(self._of_episodes(data, self._episodes))
        decisions = joined(found).to(self._device)
        critic, loss = fit_critic(decisions, demonstrated, self._steer.critic_steps, (self._seed, self.version))
        self._policy.steering = Steering(critic, self._steer.candidates)
        return metrics | {"train/critic_loss": loss, "train/critic_chunks": float(len(decisions.at))}

    @property
    def _device(self) -> torch.device:
        return next(parameter for _, parameter in self._policy.named_parameters()).device

    def _once(self, number: int, name: str, data: Demonstrations, rows: Array) -> dict[str, Array]:
        """What is kept of `rows` of a data set, drawn by the policy that the run begins with."""
        path, about = self._kept / f"{name}.safetensors", {_DRAWN_BY: self._start} | self._of
        if read_about(path) != about:
            if self.version > 1:
                raise UserError(f"{path} is missing or not of this run: restore the folder, or begin a new run.")
            self._kept.mkdir(exist_ok=True)
            write_arrays(path, self._drawn(data, rows, number), about)
        return read_arrays(path)

    def _drawn(self, data: Demonstrations, rows: Array, number: int) -> dict[str, Array]:
        """Summary and candidates at `rows` of data set `number`."""
        seed = int(philox(self._seed, RunStream.CANDIDATES, number).integers(_SEEDS))
        propose, summaries, candidates = self._policy.traits.propose, list[Array](), list[Array]()
        for some in _pieces(rows, self._learner.microbatch_size):
            rng = DecisionRng(np.full(len(some), seed), some)
            found = propose(_observed(data, some), rng, self._mode, self._steer.candidates)
            summaries.append(found.summary.float().cpu().numpy())
            chunks = found.act.actions.unflatten(0, (len(some), self._steer.candidates))
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
        """A chunk from every frame that `samples` imitates."""
        data = samples.data
        success = data.success | (not data.success.any())  # demonstrations of other programs do not say it
        return self._chunks(data, np.arange(len(data.state)), samples.rows, success, kept)

    def _chunks(
        self, data: Demonstrations, points: Array, rows: Array, success: Array, kept: dict[str, Array]
    ) -> Decisions:
        """What was done from each of `rows` on, to the frame a chunk later.

        points: int64, ascending, the frames that `kept` is of; `rows` and the frames a chunk later are among them.
        """
        length, gamma = self._policy.chunk_len, self._steer.gamma
        episode = np.searchsorted(data.starts, rows, side="right") - 1
        ends = data.starts[episode + 1]
        over = rows + length >= ends
        reward = np.where(over & success[episode], gamma ** (np.minimum(length, ends - rows) - 1), 0.0)
        return Decisions(
            self._features(data, points, kept[SUMMARY]),
            torch.from_numpy(kept[CANDIDATES]),
            torch.from_numpy(np.searchsorted(points, rows)),
            torch.from_numpy(_done(data, rows, episode, length)),
            torch.from_numpy(reward.astype(np.float32)),
            torch.from_numpy(np.where(over, 0.0, gamma**length).astype(np.float32)),
            torch.from_numpy(np.where(over, -1, np.searchsorted(points, rows + length))),
        )

    def _of_episodes(self, data: Demonstrations, store: EpisodeStore) -> Decisions:
        """The decisions of stored episodes, each to the next; where a person acted, the chunk is what was done."""
        kept = [store.arrays(key) for key in store.keys()[: len(data)]]
        arrays = {name: np.concatenate([part[name] for part in kept]) for name in KEPT}
        columns = replace(data.columns, reward=data.columns.success.astype(np.float32))
        found = chunk_transitions(columns, data.starts, self._steer.gamma)
        count = len(found.row)
        if len(arrays[CHOSEN]) != count:
            raise UserError(
                f"{store.root} has {count} decisions and the candidates of {len(arrays[CHOSEN])}: restore the "
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


def decided(data: Demonstrations, length: int) -> Array:
    """int64 [D]: frames at which a policy of chunks of `length` decides, in episodes of which it is known how they end.

    Recorded decisions may have been another policy's, or a person's, or a frame each where nobody wrote them down.
    """
    known = zip(data.starts[:-1][data.judged], data.starts[1:][data.judged], strict=True)
    return np.concatenate([np.arange(first, end, length) for first, end in known])


def _pieces(rows: Array, most: int) -> Iterator[Array]:
    for first in range(0, len(rows), most):
        yield rows[first : first + most]


def _observed(data: Demonstrations, rows: Array) -> Observation:
    return Observation.from_numpy(data.images[rows], data.state[rows], [data.instruction[row] for row in rows])


def _done(data: Demonstrations, rows: Array, episode: Array, length: int) -> Array:
    """float32 [R,K,A]: what was done from each of `rows` on, within its episode.

    Beyond its end the arm stays, after a failure as after a success: it is the outcome that the critic is to learn.
    """
    stays = np.full(len(rows), not data.own_units)
    return action_chunks(data.action, rows, data.starts[episode + 1], length, stays)
