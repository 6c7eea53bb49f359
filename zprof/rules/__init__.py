"""The rules: each reads the analysis of a run and returns a finding, a gap or nothing."""
