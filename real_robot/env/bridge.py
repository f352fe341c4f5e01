"""An arm under ROS 2 as an environment's: actions go through the bridge's control loop, safety gate and all."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from embodied_rl.real_robot.core.states import ArmState, Event, Transition
from embodied_rl.real_robot.core.watchdog import TRACKING
from embodied_rl.real_robot.deploy.remote import TwinRemote
from embodied_rl.real_robot.env.arm import ArmBlockedError, ArmFailedError, ArmStep, ArmStoppedError, ArmView
from embodied_rl.real_robot.env.person import PersonStep, PersonSteps
from embodied_rl.real_robot.record.bridge import BridgeRecorder
from embodied_rl.real_robot.ros2.bridge import Bridge
from embodied_rl.real_robot.ros2.context import ACTION_DIM, PROPRIO_DIM, STEP_NS
from embodied_rl.real_robot.ros2.events import ActionTaken, BackgroundSink, StateChanged
from embodied_rl.real_robot.ros2.events import Event as BridgeEvent
from embodied_rl.real_robot.ros2.options import BridgeOptions
from embodied_rl.real_robot.ros2.session import Session
from embodied_rl.types import Array, EpisodeSpec
from embodied_rl.utils.signals import stop_asked

_EARLY_NS = 15_000_000
"""So long before a control step ends the next action is taken, so that there is no pause between two."""
_PATIENCE_S, _PAUSE_S, _NEW_IMAGE_S, _TAKEN_S = 30.0, 0.1, 3.0, 3.0
_HEARTBEAT_S, _SCENE_S = 0.02, 60.0
_SEEDS = 10**15
"""A message's numbers are smaller; the twin draws its looks and its noise by the seed."""
_log = logging.getLogger("embodied_rl.live")


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
        return self._twin.begin(episode.task, episode.init_state, episode.seed % _SEEDS, _SCENE_S)

    def succeeded(self) -> bool:
        """See `ArmScene.succeeded`."""
        return bool(self._twin.state["success"])

    def judge(self) -> bool:
        """See `ArmScene.judge`."""
        return self.succeeded()


class BridgeArm:
    """A `LiveArm` whose bridge runs in this process; the policy is whoever steps the environment.

    A person takes over as on any bridge, by the dead man's switch, and lets go by `/embodied_rl/release`; a hold does
    so too. Where the arm is disarmed after that, the person has ended the episode.

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
        self._takeovers = self._followed = 0  # how many began in all, and how many were followed to their end
        self._loop.events.subscribe(self._on_event)
        context = self.bridge.context
        self._person = PersonSteps(context.observations.cameras)
        recorder = BridgeRecorder(self._person, context.observations.take, self._loop.law, base=context.config.base)
        self._person_sink = BackgroundSink(recorder)
        self._loop.events.subscribe(self._person_sink)
        session.node.create_timer(_HEARTBEAT_S, self._heartbeat)
        self.bridge.start()

    def begin(self, episode: EpisodeSpec) -> str:
        """See `LiveArm.begin`."""
        self._wait_for_reset()
        self._rest()
        words = self._scene.reset(episode)
        if isinstance(self._scene, TwinScene):
            self.bridge.context.observations.restart()
        self.bridge.context.observations.instruction = words
        self._patiently(Event.ARM)
        self._person.begin(self._clock.now_ns())
        self._followed = self._takeovers
        self._patiently(Event.START)
        self._seen_from_ns = self._clock.now_ns()
        return words

    def see(self) -> ArmView:
        """See `LiveArm.see`; waits for pictures of after the last control step."""
        if self._human and isinstance(step := self._next_of_person(), PersonStep):
            return self._view(step.images, step.proprio)
        until_ns = self._clock.now_ns() + round(_NEW_IMAGE_S * 1e9)
        observations = self.bridge.context.observations
        while (now_ns := self._clock.now_ns()) < until_ns:
            seen = observations.take(now_ns)
            if seen is not None and seen.stamp_ns >= self._seen_from_ns:
                return self._view(tuple(seen.images.values()), seen.proprio)
            observations.wait(_PAUSE_S)
        raise ArmFailedError(f"no new pictures for {_NEW_IMAGE_S:.0f} s: {self._faults()}")

    def glance(self) -> ArmView:
        """See `LiveArm.glance`."""
        if self._human:
            return self.see()
        seen = self.bridge.context.observations.take(self._clock.now_ns())
        if seen is None:
            raise ArmFailedError(f"no pictures: {self._faults()}")
        return self._view(tuple(seen.images.values()), seen.proprio)

    def act(self, action: Array) -> ArmStep | None:
        """See `LiveArm.act`."""
        if self._human:
            return None
        self._must_run()
        with self._changed:
            before = self._taken
            self._loop.queue(np.asarray(action, np.float64))
            self._changed.wait_for(lambda: self._taken > before or self._human, _TAKEN_S / self._clock.speed)
            if self._taken == before and not self._human:
                raise ArmFailedError(f"the control loop does not act: {self._faults()}")
        self._seen_from_ns = self._taken_ns + STEP_NS
        self._clock.sleep_until(self._seen_from_ns - _EARLY_NS)
        if self._human:
            return None
        self._must_run()
        return ArmStep(action, self._scene.succeeded())

    def follow(self) -> ArmStep | None:
        """See `LiveArm.follow`."""
        step = self._next_of_person()
        self._person.drop()
        if isinstance(step, Transition):
            self._followed, self._seen_from_ns = self._followed + 1, step.time_ns
            if step.after is ArmState.ESTOPPED:
                raise ArmStoppedError(f"the arm is {step.after}: {self._faults()}")
            return None
        return ArmStep(step.action, self._scene.succeeded())

    def resume(self) -> bool:
        """See `LiveArm.resume`."""
        if self._loop.state is ArmState.IDLE:
            return False
        if self._loop.state is ArmState.HOLDING:
            self._patiently(Event.RESUME)
        return True

    def judge(self) -> bool:
        """See `LiveArm.judge`."""
        return self._scene.judge()

    def end(self, success: bool | None) -> None:
        """See `LiveArm.end`."""
        if success is not None:
            self.bridge.label("success" if success else "failure")
        self._rest()

    def close(self) -> None:
        """See `LiveArm.close`; ends the bridge."""
        self.bridge.close()
        self._person_sink.close()

    def _view(self, images: Sequence[Array], proprio: Array) -> ArmView:
        fitted = [image if self._fit is None else self._fit(image) for image in images]
        return ArmView(np.stack(fitted), proprio.astype(np.float32))

    def _next_of_person(self) -> PersonStep | Transition:
        """What comes next of the person who has the arm, or had it; it stays the next one.

        A person who has the arm and opens the switch may take as long as they like.
        """
        while True:
            has_it = self._loop.state is ArmState.HUMAN
            found = self._person.next(_TAKEN_S / self._clock.speed)
            if self.bridge.error is not None:
                raise self.bridge.error
            if found is not None:
                return found
            if not has_it or self._person_sink.error is not None:
                why = self._person_sink.error or self._faults()
                raise ArmFailedError(f"nothing is heard of the person who had it: {why}")

    @property
    def _human(self) -> bool:
        """Whether a person has the arm, or had it and was not followed to the end."""
        return self._takeovers > self._followed

    def _must_run(self) -> None:
        if self.bridge.error is not None:
            raise self.bridge.error
        if self._loop.state is not ArmState.RUNNING:
            raise self._failed(f"the arm is {self._loop.state}: {self._faults()}")

    def _failed(self, words: str) -> ArmFailedError:
        """What an arm that does not go on is, by its state and its faults."""
        if self._loop.state is ArmState.ESTOPPED:
            return ArmStoppedError(words)
        kinds = {fault.kind for fault in self._loop.runtime.faults(self._clock.now_ns())}
        blocked = self._loop.state is ArmState.HOLDING and kinds == {TRACKING}
        return (ArmBlockedError if blocked else ArmFailedError)(words)

    def _rest(self) -> None:
        """Take the arm from whoever has it, and disarm it once it rests."""
        if self._loop.state in (ArmState.RUNNING, ArmState.HUMAN):
            self.bridge.fire(Event.HOLD)
        if self._loop.state in (ArmState.HOLDING, ArmState.ARMED):
            self._patiently(Event.DISARM)

    def _wait_for_reset(self) -> None:
        """Wait until a person has reset the emergency stop, or wants the run to end."""
        if self._loop.state is ArmState.ESTOPPED:
            _log.warning("the arm is e-stopped: look at it and reset it (/embodied_rl/reset), then the run goes on")
        while self._loop.state is ArmState.ESTOPPED:
            if self.bridge.error is not None:
                raise self.bridge.error
            if stop_asked():
                raise ArmStoppedError("the run was asked to stop while the arm is e-stopped")
            threading.Event().wait(_PAUSE_S)

    def _patiently(self, event: Event) -> None:
        """Try again until the watchdog is content with the new scene."""
        refused = ""
        for _ in range(round(_PATIENCE_S / _PAUSE_S)):
            if not (refused := self.bridge.fire(event)):
                return
            if event is Event.RESUME and self._human:
                return  # the person took it again: `act` says so
            if self._loop.state in (ArmState.ESTOPPED, ArmState.HUMAN):
                break
            threading.Event().wait(_PAUSE_S)
        stopped = self._loop.state is ArmState.ESTOPPED
        raise (ArmStoppedError if stopped else ArmFailedError)(f"{event} was refused: {refused}")

    def _faults(self) -> str:
        faults = self._loop.runtime.faults(self._clock.now_ns())
        return "; ".join(f"{fault.kind}: {fault.detail}" for fault in faults) or "no faults"

    def _heartbeat(self) -> None:
        """The policy is this process: it may think as long as it likes, and the arm rests meanwhile."""
        self._loop.heartbeat(self._clock.now_ns())

    def _on_event(self, event: BridgeEvent) -> None:
        with self._changed:
            if isinstance(event, ActionTaken) and event.action is not None:
                self._taken, self._taken_ns = self._taken + 1, event.time_ns
            elif isinstance(event, StateChanged) and event.transition.accepted:
                self._takeovers += event.transition.after is ArmState.HUMAN
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
