"""What a training run is told: its settings, its policy's files, its initial states, how it is started."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from embodied_rl.algorithms.config import AlgorithmConfig
from embodied_rl.data.lerobot import Demonstrations
from embodied_rl.evaluation.config import EvalConfig
from embodied_rl.evaluation.evaluate import EvalReport
from embodied_rl.learner.config import CheckpointConfig, LearnerConfig
from embodied_rl.learner.distributed.collectives import SINGLE_PROCESS, Collectives
from embodied_rl.learner.guard import GuardConfig
from embodied_rl.learner.imitation import Imitation
from embodied_rl.reward_model import SIMULATOR_REWARD, RewardModel
from embodied_rl.rollout.config import RolloutConfig
from embodied_rl.rollout.sampler import TaskStates
from embodied_rl.scheduler.base import WorkerFactory
from embodied_rl.scheduler.config import SchedulerConfig, SerialConfig
from embodied_rl.utils.profiler import Profiler
from embodied_rl.vec_env import VecEnv


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """What to do: the options of each part, how long, from which seed. Together with the policy it fixes the run."""

    algorithm: AlgorithmConfig
    learner: LearnerConfig
    rollout: RolloutConfig
    evaluation: EvalConfig
    checkpoint: CheckpointConfig
    iterations: int
    seed: int
    scheduler: SchedulerConfig = field(default_factory=SerialConfig)
    guard: GuardConfig = field(default_factory=GuardConfig)
    reward_model: RewardModel = SIMULATOR_REWARD
    imitation: Imitation | None = None
    """Demonstrations: of the term that `algorithm.demo_coef` weighs, or for the algorithm imitate."""
    recorded: Demonstrations | None = None
    """Episodes that lie on disk, to learn from in place of episodes of its own: nothing is run."""
    people: VecEnv | None = None
    """The simulator of training's episodes, some of which a person takes over (None: that of evaluations too)."""
    workers: int | None = None
    """Threads that step and render under the pipelined scheduler (None: one a CPU core)."""
    threads: int = 1
    """CPU threads of an update, see `Learner`."""
    perturb_share: float = 0.0
    """Share of the groups of training that are perturbed."""
    fresh_states: bool = False
    """The initial states of training were drawn for the run, and are taken in their order."""
    train_on_heldout: bool = False
    """Training may draw from the evaluated initial states; otherwise a shared one is refused."""


@dataclass(frozen=True, slots=True)
class PolicyFiles:
    """How this policy's weights reach and leave the disk. load fills the policy in place from what save wrote."""

    save: Callable[[Path], None]
    load: Callable[[Path], None]


@dataclass(frozen=True, slots=True)
class TaskSplit:
    """Initial states by task: to train on and to evaluate on."""

    train: TaskStates
    heldout: TaskStates


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """How a run is started; nothing here changes what it computes."""

    resume: Path | None = None
    """Checkpoint folder in the run's folder to continue from; from any of them the end is the same. None: begin, and
    forget what an earlier start left there."""
    resume_command: str = ""
    """Shown when the run is stopped."""
    config: dict[str, Any] | None = None
    """JSON that is kept in every checkpoint, to tell on resuming whether it was changed."""
    profiler: Profiler | None = None
    """To read spans from afterwards (of `make_profiler`)."""
    remote: WorkerFactory | None = None
    """Opens envs and policy on another machine, for `RayConfig`."""
    collectives: Collectives = SINGLE_PROCESS
    """The ranks of which this process is one; each calls `train` with simulator and policy of its own."""


@dataclass(frozen=True, slots=True)
class TrainOutcome:
    """Evaluations before the first and after the last update, and where the last checkpoint is."""

    before: EvalReport
    after: EvalReport
    checkpoint: Path
