"""The bridge between a policy server and an arm under ROS 2: plain rclpy, imported where it is used."""
