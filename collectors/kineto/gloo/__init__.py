"""Collectives that gloo ran on threads of the host."""
