"""Measure what the collectives moved: wait and transfer, bandwidth, message sizes, volume."""
