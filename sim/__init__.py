"""Simulators: engines, renderers and tasks. Importing any of them keeps MuJoCo from writing a log file."""

from embodied_rl.utils.on_import import on_import

# Not now: names of eras and suites are asked for by commands that never simulate, and MuJoCo takes half a second.
on_import("mujoco", "embodied_rl.sim.mujoco_log", "write_no_log_file")
