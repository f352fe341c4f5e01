"""embodied-rl under `ros2 launch`: its bridge and its twin as executables, and what the launch files share."""
