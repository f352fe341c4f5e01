"""A torch module of one's own as a policy, by what its output is (see `wrap_policy`)."""
