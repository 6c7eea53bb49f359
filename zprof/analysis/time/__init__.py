"""Analyse the time side of a run: step ledger, exposure, waits and transfers across ranks."""
