"""The catalogue of numbers: one entry for each leaf of the report that a person reads."""
