"""Record memory, time and clocks of a live process, and import traces and snapshots, into a run directory."""

if __name__ == "collectors":
    raise ImportError("import zprof.collectors, not collectors")
