"""Import traces and memory snapshots as a run: find them, assign ranks, write tables, cache the result."""
