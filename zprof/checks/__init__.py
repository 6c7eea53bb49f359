"""Judge a report against limits and a baseline, for CI."""
