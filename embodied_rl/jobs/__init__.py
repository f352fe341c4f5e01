"""Whole tasks that a command does: train, evaluate, record, report."""
