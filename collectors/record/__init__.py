"""Record a live process: memory, time and devices of its ranks, written to a run."""
