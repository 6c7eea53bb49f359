"""The words of zprof as types: tenants, collectives, findings, the report. Standard library only."""
