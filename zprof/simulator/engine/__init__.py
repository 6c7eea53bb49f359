"""Runs a program on all ranks at once, and keeps when everything happened."""
