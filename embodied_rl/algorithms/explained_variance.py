"""How much of the returns' variance a critic explains, of a batch that may be prepared in parts.

The variances are those of the whole batch. A part can be two episodes, and if both succeed their returns hardly differ:
the mean of the parts' own shares would then be far below 0 for a critic that sees well.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

LEAST_VARIANCE = 1e-3
"""Where returns vary less, there is nothing to explain."""
_PART = "moments/"


def return_moments(returns: Tensor, value: Tensor, episodes: int) -> dict[str, float]:
    """Sums over the rows of a part, an episode, so that their mean over episodes is that of all parts together.

    Args:
        returns, value: float32 [B].
        episodes: how many the part has.
    """
    wanted = returns.double()
    error = wanted - value.double()
    sums = {
        "rows": float(len(returns)),
        "returns": float(wanted.sum()),
        "squares": float(wanted.square().sum()),
        "errors": float(error.sum()),
        "square_errors": float(error.square().sum()),
    }
    return {f"{_PART}{name}": total / episodes for name, total in sums.items()}


def with_explained_variance(metrics: Mapping[str, float]) -> dict[str, float]:
    """`metrics` with 'train/explained_variance' and 'train/return' in place of `return_moments`' means."""
    rows = metrics[f"{_PART}rows"]
    mean, square, error, square_error = (
        metrics[f"{_PART}{name}"] / rows for name in ("returns", "squares", "errors", "square_errors")
    )
    spread, unexplained = square - mean**2, square_error - error**2
    # a critic of nothing but failures has explained nothing, however well it says 0
    explained = 1.0 - unexplained / spread if spread > LEAST_VARIANCE else 0.0
    kept = {name: value for name, value in metrics.items() if not name.startswith(_PART)}
    return kept | {"train/explained_variance": explained, "train/return": mean}
