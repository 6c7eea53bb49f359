"""Measure a job from the durations of its collectives alone: bandwidths, late ranks, slow communicators."""
