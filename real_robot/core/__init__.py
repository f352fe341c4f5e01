"""What keeps an arm safe and its motion smooth, without ROS, torch or a simulator: numpy and the standard library.

`robot` reads an arm's YAML, `gate` passes, rewrites or blocks every command, `states` says who may command the arm,
`watchdog` says when to hold, `executor` turns action chunks into actions in time, `mux` lets a human take over. Time is
an argument everywhere (nanoseconds of a monotonic clock); nothing here sleeps or reads a clock.
"""
