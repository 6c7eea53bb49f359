"""One rule a file: reads the analysis, returns a finding or a gap."""
