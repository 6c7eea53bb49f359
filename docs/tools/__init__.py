"""Makers of what the pages show: examples, pictures and the recordings that both come from."""
