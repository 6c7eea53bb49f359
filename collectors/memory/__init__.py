"""Watches one window of steps and records who owns which bytes of memory."""
