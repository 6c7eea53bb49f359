"""Rules about the options of the engine and of its environment."""
