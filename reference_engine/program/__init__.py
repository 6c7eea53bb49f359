"""The program around the engine: model, data, options, and what of it is modelled."""
