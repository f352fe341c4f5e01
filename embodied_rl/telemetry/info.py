"""What a run or an evaluation is, as fields: run.json and report.json hold them.

Sentences about them are made where they are printed, by `jobs.describe`, and are never read back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from embodied_rl.evaluation.overlap import Overlap

VERSION = 2
"""Of run.json's entries and report.json. Those without one are of version 1, which held sentences."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyInfo:
    """A policy and where its weights come from.

    Args:
        family: 'openvla', 'mlp', ...; of a class of the user's own its name with its module.
        parameters, trained_parameters: numbers, counted one by one.
        chunk_len: K, control steps of a decision.
        hidden: units of each layer of an mlp. squashed: its Gaussian is bounded by a tanh; None of other families.
        denoising_steps: of a flow policy; None of others.
        temporal_ensemble_coeff: by which overlapping chunks are averaged; None where they are not.
        unnorm_key: the data set whose action statistics it acts by; None without such.
        compiled: it acts through torch.compile.
        best_of: chunks that a critic chooses from; None of a policy that is not steered.
        fresh_critic: why its value head is not its checkpoint's, in words.
        prefix_cache_bytes: what it may keep of prompts for the update.
        checkpoint: as the user named it; None for weights that are random or were passed as an object.
        seed: of random weights.
        digest: the first 16 hexadecimal digits of the SHA-256 over all files that decide its actions; None without a
            checkpoint.
    """

    family: str
    parameters: int
    trained_parameters: int
    chunk_len: int
    hidden: tuple[int, ...] = ()
    squashed: bool | None = None
    denoising_steps: int | None = None
    temporal_ensemble_coeff: float | None = None
    unnorm_key: str | None = None
    compiled: bool = False
    best_of: int | None = None
    fresh_critic: str | None = None
    prefix_cache_bytes: int | None = None
    checkpoint: str | None = None
    seed: int | None = None
    digest: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatorInfo:
    """What steps and draws the envs, and what policies see of them.

    Args:
        name: with its version, as `EnvInfo.simulator`.
        num_envs: at the same time; 0 where no simulator is opened.
        processes: that hold the envs and are watched; None where they run in this process.
        threads: of each process; None where the simulator decides.
        batched: all envs of a physics model step as one batch.
        renderer: as `EnvInfo.renderer`. renderer_reason: why, in words; None where the simulator draws as it likes.
        render_quality: 'exact' or 'fast'; None as before.
        cameras, image_height, image_width: of the images that policies see.
        state_dim: numbers of state and proprio together.
        max_episode_steps: control steps of the longest horizon. control_hz: control steps a second.
        has_success: tasks have a goal; otherwise the mean return counts.
        repeatable: a seed fixes an episode.
        physics_version: whose contacts and textures scenes have (an era); None where tasks are no scenes of ours.
        stand_in_files: official asset files that are stand-ins, so that a score is not one on LIBERO's.
        bundles: SHA-256 of LIBERO's exported tasks; None of others.
        reads: what of the simulator's own observations is shown as what, as `EnvInfo.reads`.
    """

    name: str
    num_envs: int
    processes: int | None
    threads: int | None
    batched: bool
    renderer: str
    renderer_reason: str | None
    render_quality: str | None
    cameras: int
    image_height: int
    image_width: int
    state_dim: int
    max_episode_steps: int
    control_hz: float
    has_success: bool
    repeatable: bool
    physics_version: str | None = None
    stand_in_files: int = 0
    bundles: str | None = None
    reads: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineInfo:
    """Where it runs. device: 'cpu' or 'cuda'. gpu: its name, None on a CPU. threads: of torch."""

    cpu: str
    cores: int
    device: str
    gpu: str | None
    threads: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Versions:
    """Of what computes."""

    embodied_rl: str
    mujoco: str
    torch: str
    python: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionEnd:
    """How a session of a run ended; one that was killed has none.

    Args:
        finished: the run has all its updates, evaluations and videos.
        score_before, score_after: success (or the mean return) on held-out states; None unless finished.
        seconds, cpu_seconds: of this session in all, imports, evaluations and videos too.
        peak_memory_bytes: of the process that trains.

    The last three are None where an earlier version did not record them.
    """

    finished: bool
    score_before: float | None
    score_after: float | None
    seconds: float | None
    cpu_seconds: float | None
    peak_memory_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """One session of a training run: what really ran. config.yaml has what was asked for.

    Args:
        command: the command line. started: date and time.
        task_names: with their suite, as `EpisodeSpec.task`.
        overlap: of the evaluated episodes with the states that are trained on.
        left_out_states: training states of LIBERO's tasks that nobody can solve; None of other tasks.
        train_states: all training states, left out or not; None of other tasks.
        trained_physics_version: under which the checkpoint was trained; None where it does not say.
        num_processes: ranks of the learner.
        imports: modules of users that register what the run is made of.
        end: None while the session goes on, or where it was killed.
        version: of this entry.
    """

    command: str
    started: str
    output: str
    suite: str
    task_names: tuple[str, ...]
    protocol: str
    algorithm: str
    scheduler: str
    seed: int
    num_processes: int
    policy: PolicyInfo
    simulator: SimulatorInfo
    overlap: Overlap
    machine: MachineInfo
    versions: Versions
    left_out_states: int | None = None
    train_states: int | None = None
    trained_physics_version: str | None = None
    imports: tuple[str, ...] = ()
    end: SessionEnd | None = None
    version: int = VERSION

    @property
    def bundles(self) -> str:
        """SHA-256 of LIBERO's exported tasks; '' of others."""
        return self.simulator.bundles or ""

    @property
    def repeatable(self) -> bool:
        """Whether a seed fixes an episode of its tasks."""
        return self.simulator.repeatable


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierRunInfo:
    """A session that an earlier version wrote into run.json: sentences, which are shown as they are.

    Args:
        words: by name. The rest is as of `RunInfo`.
    """

    words: dict[str, str]
    command: str
    bundles: str
    repeatable: bool
    end: SessionEnd | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EfficientInfo:
    """What a policy leaves out to decide faster.

    Args:
        dropped_layers: their numbers. layers: how many there were. importance: of each; empty where none was dropped.
        visual_tokens: image patches that the language model reads, of visual_tokens_in_all.
        denoise_reuse: the action expert runs in one of so many denoising steps.
        compiled: it was asked to act through torch.compile, which leaves nothing out.
    """

    dropped_layers: tuple[int, ...]
    layers: int
    importance: tuple[float, ...]
    visual_tokens: int
    visual_tokens_in_all: int
    denoise_reuse: int
    compiled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalInfo:
    """An evaluation: what really runs.

    Args:
        command: the command line. output: its folder; None where that is not kept.
        task_names: with their suite. states: 'heldout' or 'train'. num_states: of all tasks together.
        protocol: all of its settings. deviations: where policy or scenes are not the protocol's own, in words.
        perturb, perturb_level: what is changed in every episode, and how much.
        overlap: with the states that were trained on.
        failing_states, failing_tasks: in which something does not hold that the task says; None where nobody judged.
        at_end: success at an episode's end is measured too, so that episodes go on after a success.
        efficient: None of a state policy.
        trained_suite, trained_physics_version: of the checkpoint; None where it does not say.
        version: of report.json.
    """

    command: str
    output: str | None
    suite: str
    task_names: tuple[str, ...]
    states: str
    num_states: int
    protocol: dict[str, Any]
    deviations: tuple[str, ...]
    perturb: tuple[str, ...]
    perturb_level: float
    overlap: Overlap
    failing_states: int | None
    failing_tasks: int | None
    at_end: bool
    mode: str
    seed: int
    policy: PolicyInfo
    efficient: EfficientInfo | None
    trained_suite: str | None
    trained_physics_version: str | None
    simulator: SimulatorInfo
    machine: MachineInfo
    versions: Versions
    version: int = VERSION
