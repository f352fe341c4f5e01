"""Environments around environments: in watched processes, under a published protocol."""
