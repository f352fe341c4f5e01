"""A robot that is a point, and a policy for it: what a user of embodied-rl may bring."""
