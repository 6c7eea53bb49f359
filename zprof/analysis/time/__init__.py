"""Analyse a run's times: step ledger, exposure, waits and transfers across ranks."""
