"""Holds a report against limits and a baseline: what a team's CI asks."""
