"""Compute how a plan responds to bandwidth, latency, tokens and world size."""
