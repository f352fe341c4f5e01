"""Who else commands the arm (publishers of its topics, clients of its actions), and whether its controller listens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from embodied_rl.real_robot.ros2.config import RosConfig

_UNKNOWN = "_NODE_NAME_UNKNOWN_"
_TOPIC, _ACTION = "/joint_trajectory", "/follow_joint_trajectory"
"""How ros2_control's trajectory controller names its topic and its action: it obeys both."""


def node_name(info: Any) -> str:
    """The node's name of a publisher; one that is no ROS node has none."""
    return "a program without a ROS node" if info.node_name == _UNKNOWN else str(info.node_name)


def other_commanders(node: Any, config: RosConfig) -> str:
    """Who else commands the arm or its gripper; '' where nobody does.

    Args:
        node: The bridge's, with one publisher or client for each.
        config: The topics and actions.
    """
    found, topics, actions = list[str](), list[str](), list[str]()
    for arm in config.arms:
        (actions if arm.goals else topics).append(arm.topic)
        if arm.topic.endswith(_TOPIC):
            actions.append(arm.topic.removesuffix(_TOPIC) + _ACTION)
        elif arm.topic.endswith(_ACTION):
            topics.append(arm.topic.removesuffix(_ACTION) + _TOPIC)
    for gripper in config.grippers:
        (actions if gripper.adapter == "gripper_command" else topics).append(gripper.topic)
    for topic in topics:
        others = sorted(_publishers(node, topic))
        found += [f"{', '.join(others)} also publishes {topic}"] if others else []
    for action in actions:
        others = sorted(_clients(node, f"{action}/_action/send_goal"))
        found += [f"{', '.join(others)} also sends goals to {action}"] if others else []
    return f"{'; '.join(found)}: stop it" if found else ""


def nobody_listens(node: Any, config: RosConfig) -> str:
    """Why set points would move nothing; '' where a controller takes them."""
    for arm in config.arms:
        if not (node.count_services(arm.goals) if arm.goals else node.count_subscribers(arm.topic)):
            return f"nobody listens to {arm.topic}: is the controller active?"
    return ""


def _publishers(node: Any, topic: str) -> Iterator[str]:
    """Nodes with a publisher, without this node's own one: another may have its name."""
    own = 1
    for info in node.get_publishers_info_by_topic(topic):
        if info.node_name == node.get_name() and info.node_namespace == node.get_namespace() and own:
            own -= 1
        else:
            yield node_name(info)


def _clients(node: Any, service: str) -> Iterator[str]:
    from rclpy.node import NodeNameNonExistentError

    own = 1
    for name, place in node.get_node_names_and_namespaces():
        try:
            clients = node.get_client_names_and_types_by_node(name, place)
        except NodeNameNonExistentError:  # it has ended just now, or is no ROS node
            continue
        if service not in dict(clients):
            continue
        if (name, place) == (node.get_name(), node.get_namespace()) and own:
            own -= 1
        else:
            yield name
