"""LIBERO's scenes under the native engine."""
