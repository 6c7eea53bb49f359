"""What an engine knows about the training: facts, settings, steps and the memory that it holds."""
