"""Files of other programs as a run: which there are, which rank each is of, and their tables."""
