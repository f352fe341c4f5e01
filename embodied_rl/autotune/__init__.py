"""Choosing scheduler, env groups and micro-batch, and what fits into memory."""
