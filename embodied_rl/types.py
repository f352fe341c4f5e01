"""The data that moves between simulator, policy and learner: torch tensors, each on the device of its producer.

Shape letters, used in every docstring of the project:
    N  env ids of a call                   K  chunk length: control steps of a decision
    A  action dimension                    L  log-prob terms of a decision (tokens or action components)
    V  cameras (may be 0)                  H, W  image height and width in pixels
    P  proprio dimension                   S  state dimension
    B  rows of a batch (one row = one decision)
    E  episodes of a batch                 G  group size (GRPO)

A *decision* is one call of the policy for one env: it yields a *chunk* of K actions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

if TYPE_CHECKING:
    import torch

Array = np.ndarray[Any, np.dtype[Any]]
RowsT = TypeVar("RowsT", "Observation", "ActOutput")


@dataclass(frozen=True, slots=True)
class EpisodeSpec:
    """One episode, fully determined: env id, worker, rank and machine change nothing.

    `seed` keys every random draw of the episode (see `embodied_rl.rng`). `init_state` is a row of the task's initial
    states. `group` is shared by the G episodes of a GRPO group, which have one task and one initial state.
    `perturb_seed` keys what is perturbed in a training episode; None: the episode is as the task says. `world_seed`
    keys how a simulator's world differs from the task's own (friction, masses, looks); None: `seed` does. A group
    shares both.

    Example:
        >>> EpisodeSpec(episode_id=7, task="libero_goal/open_drawer", init_state=3, seed=42).key_of_world
        42
    """

    episode_id: int
    task: str
    init_state: int
    seed: int
    group: int = 0
    perturb_seed: int | None = None
    world_seed: int | None = None

    @property
    def key_of_world(self) -> int:
        """`world_seed`, or `seed` where there is none."""
        return self.seed if self.world_seed is None else self.world_seed


@dataclass(slots=True)
class Observation:
    """What a policy sees of N envs, on the env's device.

    Args:
        images: uint8 [N, V, H, W, 3], RGB, row 0 at the top, cameras in the order of `EnvInfo.cameras`.
        proprio: float32 [N, P]. LIBERO-format suites have P = 8: end-effector position (m, 3), its axis-angle (rad, 3),
            gripper finger positions (m, 2).
        instruction: N strings.
        state: float32 [N, S], the simulator's state for critics and state tasks; None where there is none.

    Example:
        >>> images, proprio = np.zeros((4, 2, 64, 64, 3), np.uint8), np.zeros((4, 8), np.float32)
        >>> obs = Observation.from_numpy(images, proprio, ["open the drawer"] * 4)
        >>> obs.rows(slice(0, 2)).images.shape
        torch.Size([2, 2, 64, 64, 3])
    """

    images: torch.Tensor
    proprio: torch.Tensor
    instruction: list[str]
    state: torch.Tensor | None = None

    @classmethod
    def from_numpy(cls, images: Array, proprio: Array, instruction: list[str]) -> Observation:
        """Wrap arrays of the documented shapes and dtypes without a copy."""
        import torch

        return cls(torch.from_numpy(images), torch.from_numpy(proprio), instruction)

    def rows(self, index: slice | list[int]) -> Observation:
        """The rows of `index`: views of a slice, copies of a list."""
        return take_rows(self, index)

    def check(self) -> None:
        """Raise ValueError unless layout, dtype and row counts are as documented."""
        import torch

        n, images = len(self.instruction), self.images
        if images.dtype != torch.uint8 or images.ndim != 5 or images.shape[-1] != 3:
            raise ValueError(f"images must be uint8 [N,V,H,W,3], got {images.dtype} {tuple(images.shape)}")
        if len(images) != n:
            raise ValueError(f"row counts differ: {len(images)} images, {n} instructions")
        for name, values in (("proprio", self.proprio), ("state", self.state)):
            if values is not None and (values.dtype != torch.float32 or values.ndim != 2 or len(values) != n):
                raise ValueError(f"{name} must be float32 [{n},...], got {values.dtype} {tuple(values.shape)}")


@dataclass(slots=True)
class ChunkResult:
    """What happened to N envs in one chunk of up to K control steps. A chunk ends early where its episode ends.

    A person may take an env over in the middle of a chunk, or have it from before: the chunk's last steps are then the
    person's. It also ends early where the person gives the env back.

    Args:
        reward: float32 [N, K], zero after the last executed step, and from a person's first step on until the episode's
            end: what a person helped to reach is not paid.
        terminated: bool [N], the task ended: do not bootstrap.
        truncated: bool [N], the horizon was reached without termination: bootstrap.
        success: bool [N], the goal held at the end of some executed step, the policy's or a person's.
        steps_taken: int32 [N], executed control steps, 1..K; 0 where a person gave the env back before the first.
        failed: bool [N], the simulator broke (diverged physics, dead worker): run the episode again, never count it.
        lost: bool [N], of those that failed, the ones that another env's episode took with it; without it, none.
        human: int32 [N], how many of the executed steps, the last ones, a person did; without it, none.
        executed: float32 [N, K, A], the actions of the executed steps in rows with a person's, zero elsewhere: in other
            rows they are those that were asked for. None where there is no such row.

    Example:
        >>> result = env.step([0, 1], actions)
        >>> over = result.terminated | result.truncated | result.failed
    """

    reward: torch.Tensor
    terminated: torch.Tensor
    truncated: torch.Tensor
    success: torch.Tensor
    steps_taken: torch.Tensor
    failed: torch.Tensor
    lost: torch.Tensor = field(default=cast("torch.Tensor", None))
    human: torch.Tensor = field(default=cast("torch.Tensor", None))
    executed: torch.Tensor | None = None

    def __post_init__(self) -> None:
        if self.lost is None:
            self.lost = self.failed & False
        if self.human is None:
            self.human = self.steps_taken * 0

    @classmethod
    def from_numpy(cls, **arrays: Array) -> ChunkResult:
        """Wrap arrays, named as the fields, without a copy."""
        import torch

        return cls(**{name: torch.from_numpy(array) for name, array in arrays.items()})

    @classmethod
    def zeros(cls, rows: int, steps: int) -> ChunkResult:
        """N = `rows` envs in which no step of K = `steps` ran, on the CPU."""
        import torch

        flags = torch.zeros((4, rows), dtype=torch.bool)
        return cls(
            torch.zeros((rows, steps)), flags[0], flags[1], flags[2], torch.zeros(rows, dtype=torch.int32), flags[3]
        )

    def to(self, device: str) -> ChunkResult:
        """The same on `device`; itself where it is there already."""
        if self.reward.device.type == device:
            return self
        values: dict[str, Any] = {name.name: getattr(self, name.name) for name in fields(self)}
        return ChunkResult(**{name: value.to(device) for name, value in values.items() if value is not None})

    def put(self, rows: Sequence[int] | torch.Tensor, part: ChunkResult) -> None:
        """Copy `part` into these rows."""
        index = list(rows) if isinstance(rows, Sequence) else rows
        if part.executed is not None and self.executed is None:
            self.executed = part.executed.new_zeros((len(self.reward), *part.executed.shape[1:]))
        for name in fields(self):
            if (values := getattr(part, name.name)) is not None:
                getattr(self, name.name)[index] = values


@dataclass(slots=True)
class ActOutput:
    """One decision of N envs.

    Args:
        actions: float32 [N, K, A] in [-1, 1], for `VecEnv.step`.
        log_prob: float32 [N, L], of what was sampled.
        value: float32 [N], None without a critic.
        replay: tensors [N, ...] from which `Policy.evaluate` recomputes log_prob: tokens, or the denoising path of a
            flow policy.

    Example:
        >>> out = policy.act(obs, rng, "sample")
        >>> result = env.step(env_ids, out.actions)
    """

    actions: torch.Tensor
    log_prob: torch.Tensor
    value: torch.Tensor | None
    replay: dict[str, torch.Tensor]


@dataclass(slots=True)
class EvalOutput:
    """Recomputed log-probs of N recorded decisions, with gradients.

    Args:
        log_prob, entropy: float32 [N, L].
        value: float32 [N], None without a critic.

    Example:
        >>> ratio = (policy.evaluate(images, proprio, instruction, replay).log_prob - old_log_prob).exp()
    """

    log_prob: torch.Tensor
    entropy: torch.Tensor
    value: torch.Tensor | None


@dataclass(slots=True)
class EpisodeResult:
    """A finished episode: its outcome, its decisions (rows of a batch) and control steps.

    success: the policy reached the goal alone. An episode in which a person helped is none: `helped_success` says
    whether its goal was reached.

    Example:
        >>> success_rate = sum(result.success for result in batch.episodes) / len(batch.episodes)
    """

    spec: EpisodeSpec
    success: bool
    terminated: bool
    truncated: bool
    reward: float
    num_decisions: int
    num_steps: int
    final_value: float = 0.0
    """The critic's value of what a truncated episode shows after its last step."""
    human_steps: int = 0
    """Control steps among `num_steps` that a person did."""
    helped_success: bool = False
    """The goal was reached, and a person had helped."""


@dataclass(slots=True)
class RolloutBatch:
    """Decisions of finished episodes, one a row. Rows of an episode are contiguous, in time order.

    Args:
        images: uint8 [B, V, H, W, 3].
        proprio: float32 [B, P].
        instruction: B strings.
        replay: tensors [B, ...], as `ActOutput.replay`.
        log_prob: float32 [B, L], of the policy that acted, or of `version` once `log_importance` is filled in.
        value: float32 [B] or None, likewise.
        reward: float32 [B], summed over the chunk.
        mask: bool [B, L], terms of executed control steps.
        episode: int64 [B], index into `episodes`.
        version: policy version that the batch improves.
        row_version: int64 [B], the version that acted on each row, where it may be an older one.
        advantage, returns: float32 [B], filled in by the algorithm.
        log_importance: float32 [B, L], log-prob of `version` minus that of the policy that acted; filled in by the
            learner where rows are stale.
        frame_row: int64 [B], which row of `images` and `replay` belongs to each row, -1 where another rank has it.
            None: they have B rows, all here.
        final_images: uint8 [E, V, H, W, 3] in host memory, what each episode shows after its last step; None unless a
            reward model needs them.

    Example:
        >>> batch = gather(trajectories, version=3)
        >>> executed = batch.log_prob[batch.mask]
    """

    images: torch.Tensor
    proprio: torch.Tensor
    instruction: list[str]
    replay: dict[str, torch.Tensor]
    log_prob: torch.Tensor
    value: torch.Tensor | None
    reward: torch.Tensor
    mask: torch.Tensor
    episode: torch.Tensor
    episodes: list[EpisodeResult]
    version: int = 0
    row_version: torch.Tensor | None = None
    advantage: torch.Tensor | None = None
    returns: torch.Tensor | None = None
    log_importance: torch.Tensor | None = None
    frame_row: torch.Tensor | None = None
    final_images: torch.Tensor | None = None
    info: dict[str, float] = field(default_factory=dict)

    def __len__(self) -> int:
        return int(self.reward.shape[0])


def concatenate(parts: Sequence[RowsT]) -> RowsT:
    """The rows of several observations or decisions, one part after the other, of every field; one alone as it is.

    Raises:
        ValueError: only some of them have a field.
    """
    if len(parts) == 1:
        return parts[0]
    names = [each.name for each in fields(parts[0])]
    return type(parts[0])(**{name: join_rows([getattr(part, name) for part in parts], name) for name in names})


def take_rows(whole: RowsT, index: slice | list[int]) -> RowsT:
    """The rows of `index`, of every field: views of a slice, copies of a list."""
    return type(whole)(**{each.name: _picked(getattr(whole, each.name), index) for each in fields(whole)})


def join_rows(values: Sequence[Any], name: str) -> Any:
    """One field's tensors, lists or dictionaries of tensors, one after the other; None where all are None.

    Raises:
        ValueError: only some are None, or dictionaries have other keys.
    """
    import torch

    first = values[0]
    if first is None or any(value is None for value in values):
        if any(value is not None for value in values):
            raise ValueError(f"only some parts have {name}")
        return None
    if isinstance(first, dict):
        if any(value.keys() != first.keys() for value in values):
            raise ValueError(f"parts differ in the keys of {name}")
        return {key: torch.cat([value[key] for value in values]) for key in first}
    return torch.cat(list(values)) if isinstance(first, torch.Tensor) else [row for value in values for row in value]


def _picked(value: Any, index: slice | list[int]) -> Any:
    if isinstance(value, dict):
        return {key: each[index] for key, each in value.items()}
    if isinstance(value, list):
        return value[index] if isinstance(index, slice) else [value[row] for row in index]
    return None if value is None else value[index]
