"""ManiSkill: SAPIEN's tasks, on the CPU in watched processes or all together on a GPU."""
