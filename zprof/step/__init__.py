"""The measured step as tasks, and its time with a change."""
