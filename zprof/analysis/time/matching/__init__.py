"""Which collectives of different ranks are one, and whether that can be."""
