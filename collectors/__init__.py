"""Whatever touches a live process: records memory, time and clocks into a run directory."""

if __name__ == "collectors":
    raise ImportError("import zprof.collectors, not collectors")
