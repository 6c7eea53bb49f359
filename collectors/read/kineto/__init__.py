"""Kineto traces: record one around a window of steps, and convert a trace into tables of a run."""
