"""LIBERO-plus as published: its tasks by name, and how each changes one of LIBERO's; see docs/libero.md."""
