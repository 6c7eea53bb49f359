"""The live bytes of a step, phase by phase, and their peak."""
