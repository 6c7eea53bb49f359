"""The time side of the analysis: step ledger, exposure, waits and transfers across ranks."""
