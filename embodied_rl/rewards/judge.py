"""The contract of what a reward model asks: how far has a task come in these pictures, and is it done?"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Judge(Protocol):
    """Sees in pictures how far a task has come, and whether it is done.

    Example:
        >>> progress = judge.progress(images, instruction)  # of one episode
        >>> done = judge.done(images[-1:], instruction[-1:])
    """

    def progress(self, images: Tensor, instruction: list[str]) -> Tensor:
        """How far the task has come, float32 [T] on the CPU, in the T frames of one episode in time order.

        images: uint8 [T, V, H, W, 3]. NaN from where on it is not known.
        """
        ...

    def done(self, images: Tensor, instruction: list[str]) -> Tensor:
        """The probability that the task is done, float32 [N] on the CPU, frame by frame; NaN where it is not known.

        images: uint8 [N, V, H, W, 3].
        """
        ...

    def drain(self) -> dict[str, float]:
        """Metrics of what was judged since the last call."""
        ...
