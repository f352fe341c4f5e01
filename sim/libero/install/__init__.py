"""Exports LIBERO's tasks: an isolated environment with the official packages, their assets, and the exporter."""
