"""Whole tasks that a command does: train, evaluate, film, report."""
