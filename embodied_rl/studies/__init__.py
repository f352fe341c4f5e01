"""Studies over several evaluations or runs: leaderboard, explain, compare."""
