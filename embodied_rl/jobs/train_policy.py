"""The policy of a training run: loaded from a checkpoint, new, or an object of the caller's."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from embodied_rl.algorithms.config import AlgorithmConfig, PPOConfig, SteerConfig
from embodied_rl.config.env import SceneConfig
from embodied_rl.config.policies import CustomPolicyConfig, PolicyObjectConfig
from embodied_rl.config.train import TrainConfig, kind_of, to_dict
from embodied_rl.errors import UserError
from embodied_rl.evaluation.overlap import TRAINED_STATES, trained_states
from embodied_rl.factory.backends import check_fits
from embodied_rl.factory.custom import class_of, load_into, object_info, save_custom
from embodied_rl.factory.policies import load_policy, policy_folder, policy_info, save_policy
from embodied_rl.factory.run_config import begins_anew, new_policy, open_policy_of
from embodied_rl.factory.suite_env import SuiteEnv
from embodied_rl.learner.types import TrainablePolicy
from embodied_rl.policies.checkpoints.folder import read_provenance
from embodied_rl.policies.steering import need_proposals
from embodied_rl.telemetry.info import PolicyInfo
from embodied_rl.training.settings import PolicyFiles
from embodied_rl.vec_env import EnvInfo
from embodied_rl.version import __version__


@dataclass(frozen=True, slots=True)
class RunPolicy:
    """A policy that is ready to learn.

    info: what it is. checkpoint: where its weights come from, '' for new ones. provenance: what that says of itself.
    is_custom: of a class of the user's, whose weights are kept as they are. is_object: that was passed to train.
    """

    policy: Any
    info: PolicyInfo
    checkpoint: str = ""
    provenance: Mapping[str, Any] = field(default_factory=dict)
    is_custom: bool = False
    is_object: bool = False

    @property
    def trained(self) -> dict[str, list[int]] | None:
        """Initial states that it was trained on, by task; None where its checkpoint does not say."""
        return trained_states(self.provenance) if self.checkpoint else {}

    @property
    def device(self) -> str:
        """'cpu' or 'cuda': where it is."""
        return next(parameter for _, parameter in self.policy.named_parameters()).device.type

    @property
    def unnorm_key(self) -> str | None:
        """The data set for whose robot it acts; None of a policy without such."""
        return getattr(self.policy, "unnorm_key", None)

    def files(
        self,
        config: TrainConfig,
        known: dict[str, list[int]] | None,
        info: EnvInfo,
        provenance: Mapping[str, Any] | None = None,
    ) -> PolicyFiles:
        """How its checkpoints are written and read.

        Args:
            config: of the run.
            known: states that it will have been trained on, by task.
            info: of the simulator that it trains in.
            provenance: what they say of themselves; None: that `config` trained them in its suite.
        """
        policy = self.policy
        about = _provenance(config, known, info, self.unnorm_key) if provenance is None else dict(provenance)
        if self.is_custom:
            return PolicyFiles(partial(save_custom, policy, provenance=about), partial(load_into, policy))

        def load(folder: Path) -> None:
            saved = load_policy(folder)
            policy.model.load_state_dict(saved.model.state_dict())
            if policy.architecture != "mlp":
                policy.steering = None if saved.steering is None else saved.steering.to(policy.device)

        return PolicyFiles(lambda folder: save_policy(policy, folder, about), load)


def passed(config: TrainConfig, policy: TrainablePolicy, *, resumed: bool) -> tuple[TrainConfig, RunPolicy]:
    """A policy that was passed as an object; and the config that says so.

    Raises:
        UserError: the run that is `resumed` was not begun with a policy of its class.
    """
    named = PolicyObjectConfig(class_name=class_of(policy))
    if resumed and config.policy != named:
        raise UserError(f"{config.output} was not begun with a {class_of(policy)}: pass a policy of its class.")
    policy.with_value = isinstance(config.algorithm, PPOConfig)
    made = RunPolicy(policy, object_info(policy), is_custom=True, is_object=True)
    return dataclasses.replace(config, policy=named, device=made.device), made


def loaded(config: TrainConfig, resume: Path | None) -> RunPolicy | None:
    """The policy of the config's checkpoint, or of the run's own in `resume`; None where it begins anew.

    A custom policy is made anew in any case: the run loads its weights.
    """
    if isinstance(config.policy, CustomPolicyConfig) or (resume is None and begins_anew(config)):
        return None
    policy, checkpoint = open_policy_of(config, resume)
    return RunPolicy(policy, policy_info(policy, checkpoint), checkpoint, read_provenance(policy_folder(checkpoint)))


def new(config: TrainConfig, env: SuiteEnv) -> RunPolicy:
    """A policy for what a simulator says of itself: with random weights, or a custom one of a checkpoint."""
    policy, begun = new_policy(config, env), config.policy.checkpoint
    about = policy_info(policy, begun, config.seed)
    if not isinstance(config.policy, CustomPolicyConfig):
        return RunPolicy(policy, about)
    policy.with_value = isinstance(config.algorithm, PPOConfig)
    return RunPolicy(policy, about, begun, read_provenance(policy_folder(begun)) if begun else {}, is_custom=True)


def check_policy(found: RunPolicy, info: EnvInfo, algorithm: AlgorithmConfig) -> None:
    """UserError unless the policy reads what the simulator shows, and its checkpoints can keep what is learned."""
    if isinstance(algorithm, SteerConfig):
        need_proposals(found.policy)
        if found.is_custom:
            raise UserError(
                f"--algorithm steer keeps its critic in the checkpoint, and that of {class_of(found.policy)} has no "
                "place for it: train openvla, openvla_oft, pi0 or smolvla."
            )
    if not found.is_object:
        check_fits(found.policy, info, found.checkpoint or "the policy")


def _provenance(
    config: TrainConfig, known: dict[str, list[int]] | None, info: EnvInfo, key: str | None
) -> dict[str, Any]:
    """What a checkpoint says about how it was trained, and of the demonstrations before.

    key: of the robot among those of its data sets that it trained as; what they say of others still holds.
    """
    begun, env = getattr(config.policy, "checkpoint", None), config.env
    before = read_provenance(policy_folder(begun)) if begun else {}
    robots, views = before.get("robots"), before.get("views")
    learned: dict[str, Any] = {"control_hz": info.control_hz}
    if config.policy.observes != "state" and not isinstance(env, SceneConfig):  # scenes have the same ones everywhere
        learned["cameras"] = list(info.cameras)
    return {
        "command": "embodied-rl train",
        "version": __version__,
        "seed": config.seed,
        "suite": config.suite,
        "simulator": kind_of("env", env),
        **({"renderer": env.renderer, "era": env.physics_version} if isinstance(env, SceneConfig) else {}),
        "config": to_dict(config),
        **learned,
        **({"robots": robots | {key: robots.get(key, {}) | learned}} if robots and key else {}),
        **({} if known is None else {TRAINED_STATES: known}),
        **({} if views is None else {"views": views}),
    }
