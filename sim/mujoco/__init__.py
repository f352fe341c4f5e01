"""The native engine: many MuJoCo worlds in one process, stepped by a compiled kernel that never holds the GIL."""
