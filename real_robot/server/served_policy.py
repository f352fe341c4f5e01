"""A policy that answers requests: several in one call, each as if it were alone."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence

import numpy as np
import torch

from embodied_rl.policies.realtime import ChunkPrefix
from embodied_rl.policy import ActMode, Policy
from embodied_rl.real_robot.client.wire import short
from embodied_rl.real_robot.server.observations import PolicySpec, Request
from embodied_rl.real_robot.server.prefix import Prefix
from embodied_rl.rng import DecisionRng
from embodied_rl.types import Array, Observation

_log = logging.getLogger("embodied_rl.serve")


def black_request(spec: PolicySpec, instruction: str) -> Request:
    """A request with black pictures, to be tried before the first client comes."""
    images = np.zeros((spec.cameras, spec.image_size, spec.image_size, 3), np.uint8)
    return Request(images, np.zeros(spec.proprio_dim, np.float32), instruction, 0, 0)


class ServedPolicy:
    """`decide` for the server's one policy thread.

    Which requests share a call changes no draw: these depend on each request's seed and decision alone.

    Args:
        policy: On its device, ready to act.
        mode: 'greedy' or 'sample'.

    Example:
        >>> ServedPolicy(policy, spec).decide([request])[0].shape
        (4, 7)
    """

    def __init__(self, policy: Policy, spec: PolicySpec, mode: ActMode = "greedy") -> None:
        self.spec = spec
        self._policy = policy
        self._mode: ActMode = mode
        self._seen: set[type[Exception]] = set()
        """Kinds of failures that the log has in full: whoever makes the policy fail must not fill it."""

    def decide(self, requests: Sequence[Request]) -> list[Array | str]:
        """For each request its actions, finite float32 [K, A], or one line that says why there are none.

        Requests of which the policy cannot take one are decided one by one, so that the others get their answers.
        """
        try:
            return self._act(requests)
        except Exception as error:  # noqa: BLE001 - its client is told, and the log has the whole of it
            if len(requests) > 1:
                return [answer for request in requests for answer in self.decide([request])]
            refusal = f"the policy failed on this observation: {type(error).__name__}: {short(error)}"
            if type(error) in self._seen:
                _log.warning("%s", refusal)
            else:
                _log.exception("%s", refusal)
                self._seen.add(type(error))
            return [refusal]

    def warm_up(self, rows: Sequence[int]) -> None:
        """Decide batches of so many black pictures; raises what a policy that cannot act raises."""
        spec, request = self.spec, black_request(self.spec, "do nothing")
        for count in rows:
            self._act([request] * count)
        if spec.continues:
            prefix = Prefix(
                np.zeros((spec.chunk_len, spec.action_dim), np.float32), np.ones(spec.chunk_len, np.float32)
            )
            self._act([dataclasses.replace(request, prefix=prefix)])

    def _act(self, requests: Sequence[Request]) -> list[Array | str]:
        """Those that go on from planned actions are decided apart: they take another way through the policy."""
        answers: list[Array | str] = [""] * len(requests)
        for continues in (False, True):
            rows = [row for row, request in enumerate(requests) if (request.prefix is not None) == continues]
            for row, answer in zip(rows, self._act_alike([requests[row] for row in rows]) if rows else (), strict=True):
                answers[row] = answer
        return answers

    def _act_alike(self, requests: Sequence[Request]) -> list[Array | str]:
        images = torch.from_numpy(np.stack([request.images for request in requests]))
        proprio = torch.from_numpy(np.stack([request.proprio for request in requests]))
        obs = Observation(images, proprio, [request.instruction for request in requests])
        rng = DecisionRng(
            np.array([request.seed for request in requests], np.int64),
            np.array([request.decision for request in requests], np.int64),
        )
        prefixes = [request.prefix for request in requests if request.prefix is not None]
        if prefixes:
            continue_chunk = self._policy.traits.continue_chunk
            if continue_chunk is None:
                raise ValueError("the policy cannot go on from planned actions")
            previous, weights = (torch.from_numpy(np.stack(parts)) for parts in zip(*prefixes, strict=True))
            actions = continue_chunk(obs, rng, ChunkPrefix(previous, weights))
        else:
            actions = self._policy.act(obs, rng, self._mode).actions
        chunks = actions.float().cpu().numpy()
        wanted = (len(requests), self.spec.chunk_len, self.spec.action_dim)
        if chunks.shape != wanted:
            raise ValueError(f"the policy returned actions {chunks.shape}, not {wanted}")
        refusal = "the policy's numbers for this observation are not finite"
        return [chunk.copy() if np.isfinite(chunk).all() else refusal for chunk in chunks]
