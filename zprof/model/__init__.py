"""Types for the vocabulary of zprof: tenants, collectives, findings, the report. Standard library only."""
