"""Compiled loops for small policies on a CPU."""
