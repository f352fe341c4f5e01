"""Rollouts on other machines through Ray."""
