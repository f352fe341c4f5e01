"""Processes, threads, signals, timers and the console."""
