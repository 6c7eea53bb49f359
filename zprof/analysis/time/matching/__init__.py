"""Match collectives across ranks, and check that each match is possible."""
