"""Kineto traces: records one around a window of steps, and turns a trace into tables of a run."""
