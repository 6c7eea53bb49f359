"""Bytes from the allocators' own events: the profiler's, and CUDA's memory history."""
