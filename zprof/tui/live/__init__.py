"""The live view of a run that is still being recorded."""
