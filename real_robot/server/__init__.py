"""The policy server: robots send observations over a websocket, and their requests are decided together."""
