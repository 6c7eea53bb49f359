"""How a plan answers to bandwidth, latency, tokens and world size."""
