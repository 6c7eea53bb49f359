"""Run collectives between ranks."""
