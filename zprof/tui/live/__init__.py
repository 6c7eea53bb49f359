"""The live view: a run on the screen while it is recorded."""
