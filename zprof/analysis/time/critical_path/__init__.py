"""The chain of work, across ranks, that a step could not be shorter than."""
