"""A CUDA stream for acting, so that a decision does not wait for the kernels that the learner has queued."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn

from embodied_rl.policy import Policy


class ActStream:
    """A high-priority stream for the thread that acts with `policy`; on a CPU the methods do nothing.

    Where weights change, call `weights_loaded` after that, in the thread that changed them, and `wait_for_weights`
    before the next decision. Decisions wait for their results, so none is under way when weights are changed while
    nobody acts.

    Simulators that draw and step on a GPU queue that on another stream, behind what the learner has queued: who
    renders calls `mark`, and who acts `wait` for it; for actions the other way round.
    """

    def __init__(self, policy: Policy) -> None:
        parameter = next(policy.parameters(), None) if isinstance(policy, nn.Module) else None
        on_gpu = parameter is not None and parameter.device.type == "cuda"
        self._device = parameter.device if parameter is not None else None
        self._stream = torch.cuda.Stream(self._device, priority=-1) if on_gpu else None
        self._changed: torch.Event | None = None
        self.weights_loaded()

    def active(self) -> AbstractContextManager[object]:
        """A `with` block in which the calling thread works on this stream."""
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def weights_loaded(self) -> None:
        """The calling thread has queued the last change of the weights on its stream."""
        if self._stream is not None:
            self._changed = torch.cuda.current_stream(self._device).record_event()

    def wait_for_weights(self) -> None:
        """Let what comes next on this stream see the changes."""
        if self._stream is not None and self._changed is not None:
            self._stream.wait_event(self._changed)
            self._changed = None

    def mark(self, made: torch.Tensor) -> torch.Event | None:
        """What the calling thread has queued so far where `made` is; None where nothing is queued."""
        if self._stream is None or made.device.type != "cuda":
            return None
        return torch.cuda.current_stream(made.device).record_event()

    def wait(self, mark: torch.Event | None, place: torch.device | None = None) -> None:
        """Let what the calling thread queues next see what was marked.

        place: the device where it works; None: the policy's.
        """
        if mark is not None:
            torch.cuda.current_stream(place or self._device).wait_event(mark)
