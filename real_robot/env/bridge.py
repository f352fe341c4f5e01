"""An arm under ROS 2 as an environment's: actions go through the bridge's control loop, safety gate and all."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from embodied_rl.real_robot.core.states import ArmState, Event
from embodied_rl.real_robot.deploy.remote import TwinRemote
from embodied_rl.real_robot.env.arm import ArmFailedError, ArmView
from embodied_rl.real_robot.ros2.bridge import Bridge
from embodied_rl.real_robot.ros2.context import ACTION_DIM, PROPRIO_DIM, STEP_NS
from embodied_rl.real_robot.ros2.events import ActionTaken
from embodied_rl.real_robot.ros2.events import Event as BridgeEvent
from embodied_rl.real_robot.ros2.options import BridgeOptions
from embodied_rl.real_robot.ros2.session import Session
from embodied_rl.types import Array, EpisodeSpec

_EARLY_NS = 15_000_000
"""So long before a control step ends the next action is taken, so that there is no pause between two."""
_PATIENCE_S, _PAUSE_S, _NEW_IMAGE_S, _TAKEN_S = 30.0, 0.1, 3.0, 3.0
_HEARTBEAT_S = 0.02


class ArmScene(Protocol):
    """Who resets a scene and says how an episode ends: `HumanStep`, or `TwinScene`."""

    def reset(self, episode: EpisodeSpec) -> str:
        """Bring the scene to the episode's start; the instruction."""
        ...

    def succeeded(self) -> bool:
        """Whether the goal holds, after a control step; asked without making anybody wait."""
        ...

    def judge(self) -> bool:
        """The same at the horizon, by whoever has the last word."""
        ...


class TwinScene:
    """A twin resets and judges itself.

    Args:
        twin: Heard on the same node.
    """

    def __init__(self, twin: TwinRemote) -> None:
        self._twin = twin

    def reset(self, episode: EpisodeSpec) -> str:
        """See `ArmScene.reset`."""
        return self._twin.begin(episode.task, episode.init_state, episode.seed)

    def succeeded(self) -> bool:
        """See `ArmScene.succeeded`."""
        return bool(self._twin.state["success"])

    def judge(self) -> bool:
        """See `ArmScene.judge`."""
        return self.succeeded()


class BridgeArm:
    """A `LiveArm` whose bridge runs in this process; the policy is whoever steps the environment.

    Args:
        session: Its node, not started yet; closed by whoever made it, after this.
        options: The bridge's: arm, speed, recording. There is no policy server.
        scene: Resets and judges.
        cameras: How many of the arm's cameras the policy looks at.
        fit: Brings a picture uint8 [H, W, 3] to what `EnvInfo` says; as it comes without one.

    Raises:
        UserError: The arm's file is wrong, or has fewer cameras.

    Example:
        >>> with single_instance("embodied_rl"), Session("embodied_rl") as session:
        ...     arm = BridgeArm(session, BridgeOptions(robot="fr3"), HumanStep({"drawer": "open the drawer"}))
        ...     env = LiveVecEnv([arm], info)
    """

    def __init__(
        self,
        session: Session,
        options: BridgeOptions,
        scene: ArmScene,
        cameras: int = 2,
        fit: Callable[[Array], Array] | None = None,
    ) -> None:
        self._scene, self._fit, self._options = scene, fit, replace(options, overlap="newest", horizon=1)
        self.bridge = Bridge(session, self._options, (), metadata=_metadata(cameras))
        self._clock, self._loop = self.bridge.context.clock, self.bridge.loop
        self._taken, self._taken_ns, self._seen_from_ns = 0, 0, 0
        self._changed = threading.Condition()
        self._loop.events.subscribe(self._on_event)
        session.node.create_timer(_HEARTBEAT_S, self._heartbeat)
        self.bridge.start()

    def begin(self, episode: EpisodeSpec) -> str:
        """See `LiveArm.begin`."""
        if self._loop.state is ArmState.RUNNING:
            self.bridge.fire(Event.HOLD)
        if self._loop.state is ArmState.HOLDING:
            self._patiently(Event.DISARM)  # once it rests
        words = self._scene.reset(episode)
        self.bridge.context.observations.instruction = words
        for event in (Event.ARM, Event.START):
            self._patiently(event)
        self._seen_from_ns = self._clock.now_ns()
        return words

    def see(self) -> ArmView:
        """See `LiveArm.see`; waits for pictures of after the last control step."""
        until_ns = self._clock.now_ns() + round(_NEW_IMAGE_S * 1e9)
        observations = self.bridge.context.observations
        while (now_ns := self._clock.now_ns()) < until_ns:
            seen = observations.take(now_ns)
            if seen is not None and seen.stamp_ns >= self._seen_from_ns:
                images = [image if self._fit is None else self._fit(image) for image in seen.images.values()]
                return ArmView(np.stack(images), seen.proprio.astype(np.float32))
            observations.wait(_PAUSE_S)
        raise ArmFailedError(f"no new pictures for {_NEW_IMAGE_S:.0f} s: {self._faults()}")

    def act(self, action: Array) -> bool:
        """See `LiveArm.act`."""
        self._must_run()
        with self._changed:
            before = self._taken
            self._loop.queue(np.asarray(action, np.float64))
            self._changed.wait_for(lambda: self._taken > before, _TAKEN_S / self._clock.speed)
            if self._taken == before:
                raise ArmFailedError(f"the control loop does not act: {self._faults()}")
        self._seen_from_ns = self._taken_ns + STEP_NS
        self._clock.sleep_until(self._seen_from_ns - _EARLY_NS)
        self._must_run()
        return self._scene.succeeded()

    def judge(self) -> bool:
        """See `LiveArm.judge`."""
        return self._scene.judge()

    def close(self) -> None:
        """See `LiveArm.close`; ends the bridge."""
        self.bridge.close()

    def _must_run(self) -> None:
        if self.bridge.error is not None:
            raise self.bridge.error
        if self._loop.state is not ArmState.RUNNING:
            raise ArmFailedError(f"the arm is {self._loop.state}: {self._faults()}")

    def _patiently(self, event: Event) -> None:
        """Try again until the watchdog is content with the new scene."""
        refused = ""
        for _ in range(round(_PATIENCE_S / _PAUSE_S)):
            if not (refused := self.bridge.fire(event)):
                return
            if self._loop.state in (ArmState.ESTOPPED, ArmState.HUMAN):
                break
            threading.Event().wait(_PAUSE_S)
        raise ArmFailedError(f"{event} was refused: {refused}")

    def _faults(self) -> str:
        faults = self._loop.runtime.faults(self._clock.now_ns())
        return "; ".join(f"{fault.kind}: {fault.detail}" for fault in faults) or "no faults"

    def _heartbeat(self) -> None:
        """The policy is this process: it may think as long as it likes, and the arm rests meanwhile."""
        self._loop.heartbeat(self._clock.now_ns())

    def _on_event(self, event: BridgeEvent) -> None:
        if isinstance(event, ActionTaken) and event.action is not None:
            with self._changed:
                self._taken, self._taken_ns = self._taken + 1, event.time_ns
                self._changed.notify_all()


def _metadata(cameras: int) -> Mapping[str, Any]:
    """What a policy server would say of itself."""
    return {
        "policy": "an environment's",
        "weights": "",
        "cameras": cameras,
        "proprio_dim": PROPRIO_DIM,
        "action_dim": ACTION_DIM,
        "chunk_len": 1,
        "instruction": True,
    }
