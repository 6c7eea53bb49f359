"""Import files of other programs as a run: find them, assign ranks, write their tables, cache the result."""
