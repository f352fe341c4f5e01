"""Success on held-out initial states, with intervals and videos."""
