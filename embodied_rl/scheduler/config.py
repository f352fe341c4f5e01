"""Options of the schedulers."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal

from embodied_rl.errors import UserError
from embodied_rl.rollout.lookahead import Lookahead
from embodied_rl.utils.options import Expert
from embodied_rl.utils.words import counted
from embodied_rl.vec_env import EnvInfo


@dataclass(frozen=True, kw_only=True)
class SerialConfig:
    """Rollout and update in turn; all envs step together."""

    def describe(self) -> str:
        """In words, for the run's stamp."""
        return "serial"


@dataclass(frozen=True, kw_only=True)
class PipelinedConfig:
    """Physics, rendering, policy and learner at the same time."""

    env_groups: int | None = None
    """Groups that the envs are cut into; while the policy acts for some, others step and render (None: one where the
    policy acts on the CPU, two where it acts on a GPU)."""
    mode: Literal["on_policy", "async"] = "on_policy"
    """on_policy: the learner works on groups that are complete while others run; results do not depend on timing.
    async: the next rollout begins before the update is done, and rows of older policies are corrected by truncated
    importance weights."""
    max_staleness: int | None = None
    """async: by how many updates a row's policy may be older than the one that is trained on it (null: 1)."""
    max_lookahead: Expert[int | None] = None
    """async: how many groups (PPO: episodes) of the next batches may start before the current update is done; fewer
    after an update that changed the policy much (null: enough to keep all envs busy, at most half a batch)."""
    act_device: Expert[str | None] = None
    """Device of the policy that acts, such as cuda:1 or cpu; it gets a copy of the weights after each update (null:
    where the policy learns)."""

    def __post_init__(self) -> None:
        if self.env_groups is not None and self.env_groups < 1:
            raise UserError(f"--scheduler.env-groups must be at least 1, got {self.env_groups}.")
        if self.act_device is not None and not re.fullmatch(r"(cpu|cuda)(:\d+)?", self.act_device):
            raise UserError(f"--scheduler.act-device must be cpu, cuda or cuda:NUMBER, got {self.act_device!r}.")
        for option, value in (("max-staleness", self.max_staleness), ("max-lookahead", self.max_lookahead)):
            if value is not None and self.mode == "on_policy":
                raise UserError(f"--scheduler.{option} does not apply to mode on_policy.")
            if value is not None and value < 1:
                raise UserError(f"--scheduler.{option} must be at least 1, got {value}; for 0 use mode on_policy.")

    def num_env_groups(self, num_envs: int, *, cpu: bool, together: bool = False) -> int:
        """`env_groups` with its default filled in.

        Args:
            num_envs: of the simulator.
            cpu: the policy acts on the CPU, where smaller batches cost more than waiting for all envs does.
            together: the simulator steps all envs at once.
        """
        return self.env_groups or (1 if cpu or together else min(num_envs, 2))

    def describe(self) -> str:
        """In words, for the run's stamp."""
        stale = f" of at most {self.staleness} updates" if self.mode == "async" else ""
        stale += f" and {self.max_lookahead} groups ahead" if self.max_lookahead else ""
        acts = f", acting on {self.act_device}" if self.act_device else ""
        return f"pipelined, {self.mode}{stale}, {self.env_groups} env group{'s' if self.env_groups != 1 else ''}{acts}"

    @property
    def staleness(self) -> int:
        """`max_staleness` with its default filled in."""
        return 0 if self.mode == "on_policy" else self.max_staleness or 1

    def lookahead(self, num_envs: int, groups: int, group_size: int, *, streams: bool) -> Lookahead:
        """How far the rollout may run ahead of the learner.

        groups: groups of a batch. streams: the learner gets groups one by one; otherwise whole batches may begin.
        """
        count = self.max_lookahead
        if count is None and streams:
            fill = min(math.ceil(num_envs / group_size), max(1, groups // 2))
            count = (self.staleness - 1) * groups + fill
        return Lookahead(self.staleness, count) if self.staleness else Lookahead()


@dataclass(frozen=True, kw_only=True)
class RayConfig:
    """Rollout workers on other machines, as Ray actors, each with env.num_envs envs; the learner stays here."""

    workers: int = 2
    """Actors that run episodes, of all ranks together."""
    address: str | None = None
    """The cluster: 'auto', HOST:PORT or ray://HOST:PORT (null: Ray is started on this machine)."""
    cpus_per_worker: Expert[float] = 1.0
    """CPU cores that a worker occupies."""
    gpus_per_worker: float = 0.0
    """GPUs that a worker occupies; its policy lives there."""
    max_staleness: int = 0
    """By how many updates a row's policy may be older than the one that is trained on it; 0: every row is on-policy."""
    deadline_s: Expert[float] = 1800.0
    """A worker that has episodes of which none ends within this time is replaced, and they run again; one that is not
    open by then is started anew. If no worker is there for so long, the run ends."""

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise UserError(f"--scheduler.workers must be at least 1, got {self.workers}.")
        for name in ("cpus_per_worker", "gpus_per_worker", "max_staleness"):
            if getattr(self, name) < 0:
                option = name.replace("_", "-")
                raise UserError(f"--scheduler.{option} must not be negative, got {getattr(self, name)}.")
        if self.deadline_s <= 0:
            raise UserError(f"--scheduler.deadline-s must be positive, got {self.deadline_s}.")

    def describe(self) -> str:
        """In words, for the run's stamp."""
        return f"ray, {counted(self.workers, 'worker')}, rows of at most {self.max_staleness} updates"


SchedulerConfig = SerialConfig | PipelinedConfig | RayConfig


def check_together(config: PipelinedConfig, info: EnvInfo) -> None:
    """Raise UserError for several env groups of a simulator that steps all envs at once."""
    if info.steps_together and (config.env_groups or 1) > 1:
        raise UserError(
            f"--scheduler.env-groups is {config.env_groups}, but {info.simulator} moves all envs in every step, so "
            "they make one group: give --scheduler.env-groups 1."
        )


def check_fit(config: PipelinedConfig, num_envs: int, minibatch_groups: int | None) -> None:
    """Raise UserError unless these options go together."""
    if config.env_groups is not None and config.env_groups > num_envs:
        raise UserError(
            f"--scheduler.env-groups is {config.env_groups}, but there are {num_envs} envs (--env.num-envs)."
        )
    if config.mode == "on_policy" and minibatch_groups is None:
        raise UserError(
            "--scheduler.mode on_policy needs minibatches that can be filled while others still run: give "
            "--learner.minibatch-size None --learner.minibatch-groups 2 (or more)."
        )


def check_ranks(config: SchedulerConfig, size: int) -> None:
    """Raise UserError for a scheduler that `size` ranks cannot have."""
    if size == 1:
        return
    if isinstance(config, RayConfig) and config.max_staleness:
        raise UserError(
            "--scheduler.max-staleness does not go with several ranks, whose groups must not depend on timing: leave "
            "it out."
        )
    if isinstance(config, RayConfig) and config.workers < size:
        raise UserError(
            f"--scheduler.workers {config.workers} is too few for {size} ranks, which share them: give {size} or more "
            "(of a run that is resumed, as scheduler.workers in its config.yaml)."
        )
    if isinstance(config, PipelinedConfig) and config.mode != "on_policy":
        raise UserError(
            f"--scheduler.mode {config.mode} does not go with several ranks, whose groups must not depend on timing: "
            "use mode on_policy."
        )
