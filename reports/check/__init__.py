"""The faces of a check: what was allowed, what was measured, whether it holds."""
