"""Compare steps of the engine and its peers: same ranks, same model, same data, same AdamW."""
