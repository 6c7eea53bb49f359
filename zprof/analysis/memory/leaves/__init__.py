"""The leaves of the memory report, each computed from the resolved lives of one rank."""
