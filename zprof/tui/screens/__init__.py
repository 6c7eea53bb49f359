"""Screens of the TUI, one per file."""
