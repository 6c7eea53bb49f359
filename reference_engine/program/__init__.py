"""A training program that uses the engine: model, data, options, and modelled parts."""
