"""Replay the measured step without a cause: to price findings, and to find causes."""
