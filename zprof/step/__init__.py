"""The measured step as tasks, and what it would take with a change."""
