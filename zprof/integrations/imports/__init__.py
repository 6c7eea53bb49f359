"""Import files of other programs as a run: find them, rank them, write their tables, cache the result."""
