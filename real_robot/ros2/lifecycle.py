"""The bridge as a managed node: its arm moves in the state active alone.

| state | what there is |
|---|---|
| unconfigured | the lifecycle's services and the parameters |
| inactive | the arm's file is read, the policy known, topics are heard, checks answer; the arm cannot be armed |
| active | set points are decided and sent |
| finalized | the process ends |
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from embodied_rl.errors import UserError
from embodied_rl.real_robot.core.states import ArmState
from embodied_rl.real_robot.ros2.bridge import Bridge
from embodied_rl.real_robot.ros2.inference_client import Client
from embodied_rl.real_robot.ros2.options import BridgeOptions
from embodied_rl.real_robot.ros2.parameters import declare_parameters
from embodied_rl.real_robot.ros2.session import Session


class ManagedBridge:
    """Makes, starts, stops and ends a bridge as the transitions of its node ask.

    Transitions run among the node's callbacks. A deactivation takes as long as the arm needs to come to rest.

    Args:
        session: A managed one, not started yet.
        options: The bridge's. Each configuration after the first records into a file with a number behind its name.
        connect: Makes the connections to the policy server.

    Attributes:
        finalized: Whether the node was shut down: its process should end.

    Example:
        >>> with Session("embodied_rl", managed=True) as session:
        ...     managed = ManagedBridge(session, options, lambda: [PolicyClient("gpu-box", 8000)])
        ...     session.start()  # from here on: ros2 lifecycle set /embodied_rl configure
    """

    def __init__(self, session: Session, options: BridgeOptions, connect: Callable[[], Sequence[Client]]) -> None:
        from rclpy.lifecycle import ManagedEntity, TransitionCallbackReturn

        self._session, self._options, self._connect = session, options, connect
        self._bridge: Bridge | None = None
        self._problem: Exception | None = None
        self._recordings, self.finalized, self._busy = 0, False, threading.Lock()
        declare_parameters(session.node, options)
        self._lasting = set(_entities(session.node))
        node, manager = session.node, self

        class Transitions(ManagedEntity):
            """What the node's transitions do; one that cannot be done leaves the node where it was."""

            def on_configure(self, state: Any) -> Any:
                return done(manager._configure, TransitionCallbackReturn.FAILURE)

            def on_activate(self, state: Any) -> Any:
                return done(manager._activate, TransitionCallbackReturn.ERROR)

            def on_deactivate(self, state: Any) -> Any:
                return done(manager._deactivate, TransitionCallbackReturn.ERROR)

            def on_cleanup(self, state: Any) -> Any:
                return done(manager._clean_up, TransitionCallbackReturn.FAILURE)

            def on_shutdown(self, state: Any) -> Any:
                return done(manager._shut_down, TransitionCallbackReturn.ERROR)

            def on_error(self, state: Any) -> Any:
                return done(manager._end, TransitionCallbackReturn.FAILURE)

        def done(work: Callable[[], None], otherwise: Any) -> Any:
            manager._problem = None
            try:
                with manager._busy:
                    work()
            except Exception as error:  # noqa: BLE001 - rclpy would drop it without a word
                manager._problem = error
                node.get_logger().error(f"{type(error).__name__}: {error}")
                return otherwise
            return TransitionCallbackReturn.SUCCESS

        node.add_managed_entity(Transitions())

    @property
    def error(self) -> BaseException | None:
        """What ended a thread of the bridge or the node's callbacks; None while they run."""
        return self._session.error if self._bridge is None else self._bridge.error

    def autostart(self) -> None:
        """Run callbacks, configure and activate: a bridge that waits for its server answers a second one.

        Raises:
            UserError: The bridge cannot be configured; says why.
        """
        self._session.start()
        self._session.node.trigger_configure()
        self._raise_problem()
        self._session.node.trigger_activate()
        self._raise_problem()

    def close(self) -> None:
        """Shut the node down where nobody has: the arm to rest, then threads, then the recording.

        Raises:
            UserError: The recording is not complete.
        """
        with self._busy:  # what somebody asked for just now
            finalized = self.finalized
        if not finalized:
            self._session.node.trigger_shutdown()
        self._raise_problem()

    def _configure(self) -> None:
        clients = self._connect()
        try:
            self._bridge = Bridge(self._session, replace(self._options, record=self._recording()), clients)
        except BaseException:
            for client in clients:
                client.close()
            self._forget()
            raise
        self._recordings += 1

    def _activate(self) -> None:
        assert self._bridge is not None
        self._bridge.activate()

    def _deactivate(self) -> None:
        assert self._bridge is not None
        self._bridge.deactivate()

    def _clean_up(self) -> None:
        if self._bridge is not None and self._bridge.loop.state is ArmState.ESTOPPED:
            raise UserError("the emergency stop is latched: call /embodied_rl/reset before the bridge is cleaned up")
        self._end()

    def _shut_down(self) -> None:
        try:
            self._end()
        finally:
            self.finalized = True

    def _end(self) -> None:
        bridge, self._bridge = self._bridge, None
        try:
            if bridge is not None:
                bridge.close()
        finally:
            self._forget()

    def _forget(self) -> None:
        """Destroy what a bridge made on the node, and the nodes beside it."""
        self._session.close_beside()
        node = self._session.node
        for entity, destroy in _entities(node).items():
            if entity not in self._lasting:
                destroy(entity)

    def _recording(self) -> str | None:
        if self._options.record is None or not self._recordings:
            return self._options.record
        path = Path(self._options.record)
        return str(path.with_name(f"{path.stem}-{self._recordings + 1}{path.suffix}"))

    def _raise_problem(self) -> None:
        if self._problem is not None:
            raise self._problem


def _entities(node: Any) -> dict[Any, Callable[[Any], object]]:
    """All that a node has, with what destroys it."""
    from rclpy.action import ActionClient

    actions = [one for one in node.waitables if isinstance(one, ActionClient)]
    kinds: list[tuple[Iterable[Any], Callable[[Any], object]]] = [
        (node.timers, node.destroy_timer),
        (node.services, node.destroy_service),
        (node.clients, node.destroy_client),
        (node.subscriptions, node.destroy_subscription),
        (node.publishers, node.destroy_publisher),
        (actions, ActionClient.destroy),
    ]
    return {entity: destroy for entities, destroy in kinds for entity in entities}
