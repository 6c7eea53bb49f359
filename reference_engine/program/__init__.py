"""The measured program around the engine: model, data, options, and modelled parts."""
