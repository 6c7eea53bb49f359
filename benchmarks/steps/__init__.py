"""Steps of the engine beside those of its peers: same ranks, same model, same data, same AdamW."""
