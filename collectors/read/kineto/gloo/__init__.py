"""Collectives and messages that gloo ran on threads of the host."""
