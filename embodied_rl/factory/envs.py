"""Opens what a run stands on: the policy of a checkpoint folder and the simulated worlds of a list of tasks."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from embodied_rl.config.env_checks import check_drawn
from embodied_rl.config.train import AUTO, EnvConfig
from embodied_rl.config.training_episodes import refuse_changes
from embodied_rl.errors import UserError
from embodied_rl.factory.warp import WarpRequest, choose_warp, drawn_by_warp, open_warp
from embodied_rl.policies.checkpoints.hub import is_repository, resolve
from embodied_rl.policies.checkpoints.shipped import is_shipped, shipped_folder
from embodied_rl.utils.console import tell_once
from embodied_rl.utils.words import counted

if TYPE_CHECKING:
    from embodied_rl.factory.policies import AnyPolicy, LoadRequest
    from embodied_rl.sim.mujoco.episodes import TrainingEpisodes
    from embodied_rl.sim.mujoco.task import MujocoTask
    from embodied_rl.sim.render import Choice
    from embodied_rl.sim.state.vector import StateLayout
    from embodied_rl.vec_env import VecEnv

_SCENE_BYTES = 2 << 30
"""Memory for models of scenes, for all processes together."""
_OTHER_GROWTH = 2 << 30
"""What a process with worlds may grow by else before it is replaced."""


def policy_folder(checkpoint: str) -> Path:
    """The folder with a policy's config.json: `checkpoint` itself, the newest of a run's folder or of the `checkpoints`
    in it, a published one in the hub's cache (downloaded first if need be), or a shipped one."""
    if is_shipped(checkpoint):
        return shipped_folder(checkpoint)
    if is_repository(checkpoint):
        return resolve(checkpoint)
    from embodied_rl.learner.checkpoint import POLICY, Checkpoints

    folder = Path(checkpoint)
    for checkpoints in (folder / "checkpoints", folder):
        newest = Checkpoints(checkpoints, 1).find()
        if newest is not None:
            return newest / POLICY
    if (folder / "policy" / "config.json").is_file():
        return folder / "policy"
    return folder


def open_policy(checkpoint: str, device: str, options: LoadRequest | None = None) -> AnyPolicy:
    """Load a policy onto `device` ('cpu' or 'cuda'); UserError when the checkpoint does not fit or is damaged."""
    from embodied_rl.factory.policies import load_policy

    policy = load_policy(policy_folder(checkpoint), options)
    policy.to(device)
    return policy


def describe_policy(policy: AnyPolicy, checkpoint: str) -> dict[str, Any]:
    """What a run stamps about its policy; the SHA-256 is over all files that decide its actions."""
    from embodied_rl.policies.checkpoints.integrity import files_digest

    count = sum(parameter.numel() for parameter in policy.parameters())
    trained = sum(parameter.numel() for parameter in policy.parameters() if parameter.requires_grad)
    size = f"{count / 1e6:.2f} M parameters" + (f" ({trained / 1e6:.2f} M train)" if trained < count else "")
    steps = policy.efficient_parts.num_inference_steps
    origin = f"the small one in the package ({checkpoint})" if is_shipped(checkpoint) else checkpoint
    digest = files_digest(policy.source_files, policy_folder(checkpoint))
    cache = policy.traits.prefix_cache
    return {
        "policy": f"{policy.architecture}, {size}, chunks of {counted(policy.chunk_len, 'step')}"
        + (f", {steps} denoising steps" if steps else ""),
        "weights": f"{origin}, sha256 {digest[:16]}",
        "unnorm key": policy.unnorm_key,
        "acts": acts(policy),
        **({"critic": policy.traits.fresh_critic} if policy.traits.fresh_critic else {}),
        **({} if cache is None else {"prefixes": f"kept for the update, up to {cache.max_bytes / 2**30:g} GiB"}),
    }


def statistics_line(policy: AnyPolicy, suite: str) -> str:
    """Whose action statistics act in `suite`: the key, and the suite's name if it is that of another one."""
    from embodied_rl.factory.tasks import LIBERO_SUITES
    from embodied_rl.sim import tabletop
    from embodied_rl.utils.suites import base_suite

    key = policy.unnorm_key
    known = (*tabletop.suites(), *LIBERO_SUITES)
    own = next((name for name in known if key in (name, f"{name}_no_noops")), base_suite(suite))
    return key if own == base_suite(suite) else f"{key}: those of another suite (to evaluate there: --suite {own})"


def acts(policy: AnyPolicy) -> str:
    """How it decides: by torch's operators as they come, or compiled."""
    if not policy.traits.compiled:
        return "not compiled"
    return "compiled (torch.compile" + (", CUDA graphs)" if policy.device.type == "cuda" else ")")


def pick_device(wanted: str) -> str:
    """'cpu' or 'cuda'; UserError if a GPU is asked for and there is none."""
    import torch

    if wanted not in ("auto", "cpu", "cuda"):
        raise UserError(f"device '{wanted}': choose auto, cpu or cuda.")
    if wanted == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if wanted == "cuda" and not torch.cuda.is_available():
        raise UserError("device cuda: torch sees no GPU here; use --device cpu, or install a CUDA build of torch.")
    return wanted


def pick_renderer(wanted: str, tasks: Sequence[MujocoTask], quality: str = "auto", simulator: str = "native") -> Choice:
    """What will draw these tasks in this render quality, and why; UserError if nothing can.

    simulator: as `EnvConfig.simulator`.
    """
    from embodied_rl.sim.mujoco.factory import choose_renderer

    if wanted == "warp" or (wanted == "auto" and simulator == "warp"):
        return choose_warp(wanted)
    return choose_renderer(wanted, tasks, pick_render_quality(quality, tasks))


def pick_render_quality(wanted: str, tasks: Sequence[MujocoTask]) -> Literal["exact", "fast"]:
    """How frames are drawn: 'auto' means as LIBERO's own wherever one of its tasks is among these."""
    from embodied_rl.sim.mujoco.factory import choose_render_quality

    return choose_render_quality(wanted, tasks)


def open_env(
    tasks: Sequence[MujocoTask],
    config: EnvConfig,
    image_size: int,
    *,
    cameras: int = 2,
    stop_at_success: bool = True,
    state: bool = False,
    device: str = "cpu",
    training: TrainingEpisodes | None = None,
) -> closing[VecEnv]:
    """The worlds, to be used in a `with` statement; `cameras` of the simulator's are drawn, from the first.

    config.renderer is what `pick_renderer` chose, for these tasks or for those that they are variants of; nothing is
    drawn with 0 cameras. state: observations have one, with room for every task of the suites of `tasks`. device: where
    MuJoCo Warp simulates or draws, 'cpu' or 'cuda'. training: how episodes may differ from the tasks' own (None: they
    may not).
    """
    if config.control != AUTO:
        raise UserError("--env.control chooses a controller of suite 'maniskill': leave it out.")
    if config.step_reward != AUTO:
        raise UserError("--env.step-reward is for EnvPool's and ManiSkill's suites: here it is --env.reward.")
    if config.reward_gamma is not None and config.reward == "sparse":
        raise UserError("--env.reward-gamma goes with --env.reward staged or shaped.")
    check_drawn(config, cameras)
    exact, by_warp = pick_render_quality(config.render_quality, tasks) == "exact", config.renderer == "warp"
    if training is not None and "warp" in (config.simulator, config.renderer):
        refuse_changes(training.perturb, "MuJoCo Warp")
    if config.simulator == "warp":
        asked = WarpRequest(config, image_size, cameras, stop_at_success, device, exact)
        return closing(open_warp(tasks, asked, state=state))
    announce_compilation()
    from embodied_rl.factory.tasks import ladders_dir
    from embodied_rl.sim.mujoco.episodes import TASKS_OWN
    from embodied_rl.sim.mujoco.factory import NativeFactory
    from embodied_rl.sim.state.staged import Shaping
    from embodied_rl.sim.wrappers.subprocess_env import ProcessVecEnv

    factory = NativeFactory(
        tuple(tasks),
        "auto" if config.renderer == "warp" else config.renderer,
        official=exact,
        image_size=image_size,
        threads=_threads_each(config),
        stop_at_success=stop_at_success,
        cameras=0 if by_warp else cameras,
        max_scene_bytes=_SCENE_BYTES // (config.processes or 1),
        ladders=ladders_dir(),
        layout=_state_layout(tasks) if state else None,
        shaping=None if config.reward == "sparse" else Shaping(config.reward, config.discount),
        training=training or TASKS_OWN,
    )
    if by_warp and cameras:
        return closing(drawn_by_warp(factory(config.num_envs), cameras, device, config, exact=exact))
    if config.processes is None:
        return closing(factory(config.num_envs))
    factory.compile()
    return closing(
        ProcessVecEnv(
            factory,
            config.num_envs,
            processes=config.processes,
            max_growth=_SCENE_BYTES + _OTHER_GROWTH,
            say=lambda line: print(line, file=sys.stderr),  # looked up when called: a progress bar may hold it
        )
    )


def _state_layout(tasks: Sequence[MujocoTask]) -> StateLayout:
    """Room for all tasks of these tasks' suites, so that a policy of one of them fits the others."""
    from embodied_rl.factory.tasks import load_tasks
    from embodied_rl.sim.state.vector import StateLayout

    suites = {task.suite: task.era for task in tasks}
    return StateLayout.of([*tasks, *(task for suite, era in suites.items() for task in load_tasks(suite, (), era))])


def describe_env_processes(config: EnvConfig) -> str:
    """In words, for the stamp."""
    if config.simulator == "warp":
        return "one batch for each physics model"
    threads, processes = config.num_threads or cpu_count(), config.processes
    if processes is None:
        return counted(threads, "thread")
    each = _threads_each(replace(config, num_threads=threads))
    return f"{counted(processes, 'watched process')}, threads of each: {each}"


def _threads_each(config: EnvConfig) -> int | None:
    """Threads of a process with worlds; at least one, so more processes than threads run side by side all the same."""
    if config.processes is None or config.num_threads is None:
        return config.num_threads
    return max(1, config.num_threads // config.processes)


def announce_compilation() -> None:
    """Say on stderr why the first worlds of an installation keep their user waiting."""
    from embodied_rl.sim.mujoco import kernel

    if not kernel.is_compiled():
        tell_once("Compiling the simulator, once for this installation: a minute on an idle machine.")


def cpu_count() -> int:
    """CPU cores that this process may use (a container may have fewer than the machine)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_name() -> str:
    """The processor's name, as far as the system tells it."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
