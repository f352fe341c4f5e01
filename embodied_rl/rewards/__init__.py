"""Learned rewards: models that judge pictures, what they pay, how they are trained, and how far to trust them."""
