"""MuJoCo backend: many envs in one process, stepped by a compiled kernel that never holds the GIL."""
