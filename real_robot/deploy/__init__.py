"""Starts server, twin and bridge as processes, and talks to them over ROS 2."""
