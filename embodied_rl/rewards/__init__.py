"""Reward models: what a rollout's rows are worth, before advantages are computed."""
