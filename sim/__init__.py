"""Simulators: engines, renderers and tasks. Importing any of them keeps MuJoCo from writing a log file."""

from embodied_rl.sim.mujoco_log import write_no_log_file

write_no_log_file()
