"""What a run or an evaluation is, in words: made here from its fields, for the terminal and for pages.

Nothing reads these sentences back. Whoever must decide something asks the fields of `telemetry.info`.
"""

from __future__ import annotations

from collections.abc import Mapping

from embodied_rl.config.train import TrainConfig
from embodied_rl.factory.policies import statistics_owner
from embodied_rl.jobs.describe_config import algorithm_words, demos_words, people_words, perturbed_words, reward_words
from embodied_rl.policies.checkpoints.shipped import is_shipped
from embodied_rl.sim.eras import CURRENT, PUBLISHED
from embodied_rl.telemetry.info import (
    EarlierRunInfo,
    EfficientInfo,
    EvalInfo,
    MachineInfo,
    PolicyInfo,
    RunInfo,
    SessionEnd,
    SimulatorInfo,
    Versions,
)
from embodied_rl.telemetry.tables import NOT_REPEATABLE, stand_in_words
from embodied_rl.utils.suites import LIBERO_PLUS, OFFICIAL_SUITES, PRO_SUITES, base_suite
from embodied_rl.utils.words import counted, file_size, sentence, time_spent

_STATES = {"heldout": "held-out state", "train": "training state"}
_M, _GIB = 1e6, 2**30
_SIMULATED = ("suite", "protocol", "overlap", "renderer", "horizon", "scored by", "scheduler")
"""What is said of a run that opens a simulator, and not of one that learns from data on disk."""


def policy_words(info: PolicyInfo) -> str:
    """Family, size and chunk."""
    size = f"{_millions(info.parameters)} parameters"
    if info.trained_parameters < info.parameters:
        size += f" ({_millions(info.trained_parameters)} train)"
    parts = [info.family, size, f"chunks of {counted(info.chunk_len, 'step')}"]
    if info.hidden:
        kind = "squashed Gaussian" if info.squashed else "Gaussian"
        parts[1:1] = [kind, f"layers of {' '.join(map(str, info.hidden))} units"]
    parts += [f"the best of {info.best_of} by a critic"] if info.best_of else []
    if info.denoising_steps:
        parts.append(counted(info.denoising_steps, "denoising step"))
    if info.temporal_ensemble_coeff is not None:
        parts.append(f"overlapping chunks averaged (coefficient {info.temporal_ensemble_coeff:g})")
    return ", ".join(parts)


def weights_words(info: PolicyInfo) -> str:
    """Where a policy's weights come from."""
    if info.checkpoint is None:
        return "as passed to train" if info.seed is None else f"random, of seed {info.seed}"
    shipped = f"the small one in the package ({info.checkpoint})"
    return f"{shipped if is_shipped(info.checkpoint) else info.checkpoint}, sha256 {info.digest}"


def statistics_words(key: str, suite: str) -> str:
    """Whose action statistics act in `suite`: the key, and the suite's name if it is that of another one."""
    own = statistics_owner(key) or base_suite(suite)
    return key if own == base_suite(suite) else f"{key}: those of another suite (to evaluate there: --suite {own})"


def simulator_words(info: SimulatorInfo) -> str:
    """What steps how many envs, and where."""
    if not info.num_envs:
        return "none: learns from data on disk"
    if info.batched:
        where = "one batch for each physics model"
    elif info.threads is None:
        where = "in this process" if info.processes is None else counted(info.processes, "watched process")
    elif info.processes is None:
        where = counted(info.threads, "thread")
    else:
        where = f"{counted(info.processes, 'watched process')}, threads of each: {info.threads}"
    return f"{info.name}, {counted(info.num_envs, 'env')}, {where}"


def renderer_words(info: SimulatorInfo, *, reason: bool = True) -> str:
    """What draws, and what policies see of it; reason: also why it was chosen."""
    images = f"{counted(info.cameras, 'camera')} of {info.image_height}x{info.image_width}"
    if info.render_quality is not None:
        why = f" ({info.renderer_reason})" if reason and info.renderer_reason else ""
        return f"{info.renderer}{why}, {info.render_quality} frames, {images}"
    seen = ([images] if info.cameras else []) + ([f"{info.state_dim} numbers"] if info.state_dim else [])
    return f"{info.renderer}{'' if info.cameras else ', for videos'}; policies see {' and '.join(seen)}"


def physics_words(version: str, suite: str, trained: str | None) -> str:
    """Whose contacts and textures scenes have; trained: those of the policy, None where its checkpoint does not say."""
    words = version
    if version == PUBLISHED:
        words += " (published)"
    elif version == CURRENT and _is_official(suite):
        words += " (this MuJoCo's own, not that of published scores)"
    return words if trained in (None, version) else f"{words}; the policy was trained under {trained}"


def machine_words(info: MachineInfo) -> str:
    """The machine."""
    return f"{info.cpu}, {counted(info.cores, 'core')}"


def device_words(info: MachineInfo, versions: Versions) -> str:
    """Where the policy is."""
    gpu = f" ({info.gpu})" if info.gpu else ""
    return f"{info.device}{gpu}, torch {versions.torch}, {counted(info.threads, 'thread')}"


def version_words(info: Versions) -> str:
    """Versions of the programs."""
    return f"embodied-rl {info.embodied_rl}, mujoco {info.mujoco}, python {info.python}"


def overlap_words(info: RunInfo | EvalInfo) -> str:
    """How many of the evaluated episodes start where the policy is trained."""
    if not info.simulator.repeatable:
        return "unknown: episodes do not begin from the initial state that is asked for"
    return info.overlap.describe()


def memory_words(peak_bytes: int) -> str:
    """The most memory that a run had."""
    return f"{file_size(peak_bytes)} at the peak, of the process that trains"


def run_words(info: RunInfo | EarlierRunInfo, config: TrainConfig) -> dict[str, str]:
    """Everything about a session of a run. config: the run's."""
    if isinstance(info, EarlierRunInfo):
        return info.words | _end_rows(info.end)
    names = [sentence(name) for name in info.task_names]
    rows = {
        "command": info.command,
        "suite": f"{info.suite}, {counted(len(names), 'task')}: {', '.join(names)}",
        "protocol": info.protocol,
        "overlap": overlap_words(info),
        "repeats": "" if info.repeatable else NOT_REPEATABLE,
        **_simulator_rows(info.simulator, info.suite, info.trained_physics_version),
        "left out": _left_out(info),
        **_policy_rows(info.policy, info.machine, info.suite),
        "imitates": demos_words(config),
        "people": people_words(config),
        "perturbed": perturbed_words(config),
        "reward": reward_words(config.reward) if config.reward.model else "",
        "machine": machine_words(info.machine),
        "device": device_words(info.machine, info.versions),
        "algorithm": algorithm_words(config),
        "scheduler": config.scheduler.describe(),
        "ranks": _ranks(info, config),
        "evaluates": _average(config),
        "seed": str(info.seed),
        "output": info.output,
        "versions": version_words(info.versions),
        "started": info.started,
        **_end_rows(info.end),
    }
    return {name: text for name, text in rows.items() if text and not (config.data and name in _SIMULATED)}


def run_head(info: RunInfo, config: TrainConfig) -> list[str]:
    """What a user must know of what runs; run.json has it all."""
    simulator, overlap = info.simulator, info.overlap
    rows = {
        "suite": "" if config.data else f"{info.suite}, {counted(len(info.task_names), 'task')}",
        "policy": f"{policy_words(info.policy)}; {weights_words(info.policy)}",
        "algorithm": f"{algorithm_words(config)}, {config.scheduler.describe()}, seed {info.seed}",
        "simulator": simulator_words(simulator)
        + ("" if config.data else f"; {renderer_words(simulator, reason=False)}"),
        "reads": "; ".join(simulator.reads),
        "critic": info.policy.fresh_critic or "",
        "imitates": demos_words(config),
        "people": people_words(config),
        "perturbed": perturbed_words(config),
        "reward": reward_words(config.reward) if config.reward.model else "",
        "device": device_words(info.machine, info.versions),
        "output": info.output,
        "physics": _unusual_physics(simulator, info.suite, info.trained_physics_version),
        "assets": stand_in_words(simulator.stand_in_files) if simulator.stand_in_files else "",
        "repeats": "" if info.repeatable else NOT_REPEATABLE,
        "overlap": overlap_words(info) if info.repeatable and overlap.shared else "",
    }
    return _lines(rows)


def eval_words(info: EvalInfo) -> dict[str, str]:
    """Everything about an evaluation but its protocol's settings and its fingerprint."""
    rows = {
        "command": info.command,
        "suite": evaluated_words(info),
        "protocol": info.protocol["name"],
        "deviations": "; ".join(info.deviations) or "none",
        "perturbed": _perturbed(info) or "no",
        "overlap": overlap_words(info),
        "repeats": "" if info.simulator.repeatable else NOT_REPEATABLE,
        "premises": premise_words(info),
        "success": "once and at end" if info.at_end else "once (episodes end at success)",
        **_simulator_rows(info.simulator, info.suite, info.trained_physics_version),
        **_policy_rows(info.policy, info.machine, info.suite),
        "efficient": efficient_words(info.efficient, info.policy),
        "trained on": info.trained_suite or "not recorded",
        "mode": info.mode,
        "seed": str(info.seed),
        "machine": machine_words(info.machine),
        "device": device_words(info.machine, info.versions),
        "versions": version_words(info.versions),
        "output": info.output or "",
    }
    return {name: text for name, text in rows.items() if text}


def eval_head(info: EvalInfo) -> list[str]:
    """What a user must know of what runs; report.json has it all."""
    simulator, notes = info.simulator, "; ".join(info.deviations)
    rows = {
        "suite": evaluated_words(info),
        "policy": f"{policy_words(info.policy)}; {weights_words(info.policy)}",
        "protocol": info.protocol["name"] + (f", but {notes}" if notes else ""),
        "simulator": f"{simulator_words(simulator)}; {renderer_words(simulator, reason=False)}",
        "reads": "; ".join(simulator.reads),
        "device": device_words(info.machine, info.versions),
        "overlap": overlap_words(info),
        "trained": "" if info.trained_suite in (None, info.suite) else f"on {info.trained_suite}",
        "physics": _unusual_physics(simulator, info.suite, info.trained_physics_version),
        "premises": premise_words(info) if info.failing_states else "",
        "assets": stand_in_words(simulator.stand_in_files) if simulator.stand_in_files else "",
        "perturbed": _perturbed(info),
        "efficient": "" if as_trained(info.efficient) else efficient_words(info.efficient, info.policy),
        "horizon": "" if simulator.physics_version else _horizon(simulator),
        "repeats": "" if simulator.repeatable else NOT_REPEATABLE,
        "output": info.output or "",
    }
    return _lines(rows)


def evaluated_words(info: EvalInfo) -> str:
    """How many tasks, and states of each."""
    count = len(info.task_names)
    states = counted(info.num_states // count, _STATES[info.states])
    return f"{info.suite}, {counted(count, 'task')}, {states} each"


def premise_words(info: EvalInfo) -> str:
    """In how many of the evaluated states something does not hold that the task says."""
    if info.failing_states is None:
        return "not judged"
    if not info.failing_states:
        return "hold in every state"
    tasks = counted(info.failing_tasks or 0, "task")
    return f"FAIL in {info.failing_states} of {info.num_states} initial states, of {tasks} (see the report)"


def as_trained(info: EfficientInfo | None) -> bool:
    """Whether the policy decides as in its training."""
    return info is None or not (
        info.dropped_layers or info.visual_tokens < info.visual_tokens_in_all or info.denoise_reuse > 1
    )


def efficient_words(info: EfficientInfo | None, policy: PolicyInfo) -> str:
    """What the policy leaves out."""
    if info is None or as_trained(info):
        return "as trained, nothing left out"
    said = []
    if info.dropped_layers:
        scores = ", ".join(f"{index}: {value:.3f}" for index, value in enumerate(info.importance))
        dropped = ", ".join(map(str, info.dropped_layers))
        said.append(f"layers left out: {dropped} of 0 to {info.layers - 1} (importance {scores})")
    if info.visual_tokens < info.visual_tokens_in_all:
        said.append(f"visual tokens: {info.visual_tokens} of {info.visual_tokens_in_all}")
    if info.denoise_reuse > 1:
        steps = f"{info.denoise_reuse} denoising steps ({policy.denoising_steps} in all)"
        said.append(f"action expert: in one of {steps}")
    return "; ".join(said)


def _simulator_rows(info: SimulatorInfo, suite: str, trained: str | None) -> dict[str, str]:
    version = info.physics_version
    return {
        "simulator": simulator_words(info),
        "renderer": renderer_words(info),
        "reads": "; ".join(info.reads),
        "horizon": _horizon(info),
        "scored by": "success" if info.has_success else "mean return (its tasks have no success flag)",
        "physics version": physics_words(version, suite, trained) if version else "",
        "assets": stand_in_words(info.stand_in_files) if info.stand_in_files else "",
        "bundles": info.bundles or "",
    }


def _policy_rows(info: PolicyInfo, machine: MachineInfo, suite: str) -> dict[str, str]:
    cache = info.prefix_cache_bytes
    graphs = ", CUDA graphs" if machine.device == "cuda" else ""
    return {
        "policy": policy_words(info),
        "weights": weights_words(info),
        "unnorm key": statistics_words(info.unnorm_key, suite) if info.unnorm_key else "",
        "acts": f"compiled (torch.compile{graphs})" if info.compiled else "not compiled",
        "critic": info.fresh_critic or "",
        "prefixes": "" if cache is None else f"kept for the update, up to {cache / _GIB:g} GiB",
    }


def _end_rows(end: SessionEnd | None) -> dict[str, str]:
    if end is None:
        return {}
    times = [] if end.seconds is None else [time_spent(end.seconds)]
    times += [] if end.cpu_seconds is None else [f"{time_spent(end.cpu_seconds)} of CPU time"]
    return {
        "took": "; ".join(times),
        "memory": "" if end.peak_memory_bytes is None else memory_words(end.peak_memory_bytes),
        "finished": "yes" if end.finished else "no",
    }


def _unusual_physics(info: SimulatorInfo, suite: str, trained: str | None) -> str:
    """Nothing where scenes are as this MuJoCo has them, in training too, and nobody expects another."""
    version = info.physics_version
    if version is None or (version == CURRENT and not _is_official(suite) and trained in (None, CURRENT)):
        return ""
    return physics_words(version, suite, trained)


def _left_out(info: RunInfo) -> str:
    if info.left_out_states is None:
        return ""
    if not info.left_out_states:
        return "no training state"
    return f"{info.left_out_states} of {info.train_states} training states, which nobody can solve"


def _ranks(info: RunInfo, config: TrainConfig) -> str:
    if info.num_processes == 1:
        return ""
    return f"{info.num_processes}, {'FSDP2' if config.learner.fsdp else 'replicated'}"


def _average(config: TrainConfig) -> str:
    updates = config.learner.average_updates
    return f"a running mean of the weights (1/{updates} an update), which is saved too" if updates else ""


def _horizon(info: SimulatorInfo) -> str:
    return f"{counted(info.max_episode_steps, 'step')} at {info.control_hz:g} Hz"


def _perturbed(info: EvalInfo) -> str:
    if info.perturb == (LIBERO_PLUS,):
        return "as LIBERO-plus' tasks say"
    return f"{', '.join(info.perturb)} at level {info.perturb_level:g}" if info.perturb else ""


def _is_official(suite: str) -> bool:
    return suite in (*OFFICIAL_SUITES, *PRO_SUITES)


def _millions(count: int) -> str:
    return f"{count / _M:.2f} M" if count >= 0.1 * _M else f"{count / 1e3:.1f} k"


def _lines(rows: Mapping[str, str]) -> list[str]:
    return [f"  {name:<10}{text}" for name, text in rows.items() if text]
