"""Nodes with their executors in threads, made and ended in the one order that does not abort the process."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from embodied_rl.errors import UserError
from embodied_rl.real_robot.ros2.environment import INSTALL


@dataclass
class _Spinning:
    """A node, its executor and the thread that runs its callbacks."""

    node: Any
    executor: Any
    thread: threading.Thread
    closing: threading.Event

    def close(self) -> None:
        self.closing.set()
        self.executor.shutdown(timeout_sec=2.0)
        if self.thread.is_alive() and threading.current_thread() is not self.thread:
            self.thread.join(timeout=5.0)
        self.node.destroy_node()


class Session:
    """One node and the thread that runs its callbacks.

    Callbacks run one after the other in that thread; publishing is allowed from any. Nodes of `beside` have their own.
    The parameters that the process was given for the node are declared as they are.

    Args:
        name: Of the node.
        managed: Whether the node has a lifecycle: `node.add_managed_entity` says what its transitions do.

    Raises:
        UserError: rclpy cannot be imported, or the process was given simulated time or another name for the node.

    Example:
        >>> with Session("observer") as session:
        ...     session.node.create_subscription(String, "/words", print, 1)
        ...     session.start()
    """

    def __init__(self, name: str, *, managed: bool = False) -> None:
        try:
            import rclpy
            from rclpy.exceptions import InvalidHandle
            from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
            from rclpy.lifecycle import LifecycleNode
            from rclpy.node import Node
            from rclpy.signals import SignalHandlerOptions
        except ImportError as error:
            raise UserError(f"rclpy cannot be imported ({error}): {INSTALL}") from error
        self._rclpy, self._ended, self._make = rclpy, ExternalShutdownException, (SingleThreadedExecutor, Node)
        self._gone = InvalidHandle
        self.context = rclpy.Context()
        rclpy.init(context=self.context, signal_handler_options=SignalHandlerOptions.NO)
        self.node: Any = (LifecycleNode if managed else Node)(
            name, context=self.context, automatically_declare_parameters_from_overrides=True
        )
        self._main = self._spinning(self.node)
        self._beside: list[_Spinning] = []
        self.error: BaseException | None = None
        """What a callback raised: its thread has ended."""
        if problem := _refused(self.node, name):
            self.close()
            raise UserError(problem)
        self.node.add_on_set_parameters_callback(_keep_wall_time)

    def start(self) -> None:
        """Run callbacks from now on."""
        self._main.thread.start()

    def beside(self, name: str) -> Any:
        """Another node, hidden, whose callbacks run in a thread of their own: none of the others can delay them.

        Args:
            name: Of the node, behind that of the main one.
        """
        _, kind = self._make
        node = kind(
            f"_{self.node.get_name()}_{name}", context=self.context, enable_rosout=False, start_parameter_services=False
        )
        self._beside.append(self._spinning(node))
        return node

    def start_beside(self) -> None:
        """Run the callbacks of `beside`'s nodes from now on."""
        for one in self._beside:
            if not one.thread.is_alive():
                one.thread.start()

    def close_beside(self) -> None:
        """End `beside`'s nodes."""
        while self._beside:
            self._beside.pop().close()

    def close(self) -> None:
        """End: executors, threads, nodes, context."""
        self.close_beside()
        self._main.close()
        self._rclpy.try_shutdown(context=self.context)

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _spinning(self, node: Any) -> _Spinning:
        executor = self._make[0](context=self.context)
        executor.add_node(node)
        closing, name = threading.Event(), f"{node.get_name()} callbacks"
        thread = threading.Thread(target=self._spin, args=(executor, closing), name=name, daemon=True)
        return _Spinning(node, executor, thread, closing)

    def _spin(self, executor: Any, closing: threading.Event) -> None:
        try:
            executor.spin()
        except self._ended:
            return
        except self._gone as error:  # a callback that ran on as its executor ended
            if not closing.is_set():
                self.error = error
                raise
        except BaseException as error:
            self.error = error
            raise


_SIMULATED = "use_sim_time is not supported: the clock of stamps is the computer's own; leave it false"


def _refused(node: Any, name: str) -> str:
    """Why a node cannot be what the process' arguments made of it; empty where it can."""
    if node.get_parameter("use_sim_time").value:
        return _SIMULATED
    if node.get_name() != name:
        return (
            f"the rule __node:={node.get_name()} renames every node of this process: remove it (name= in a launch file)"
        )
    return ""


def _keep_wall_time(parameters: list[Any]) -> Any:
    from rcl_interfaces.msg import SetParametersResult

    simulated = any(one.name == "use_sim_time" and one.value for one in parameters)
    return SetParametersResult(successful=not simulated, reason=_SIMULATED if simulated else "")
