"""A ZeRO engine to read and to measure: stages 0 to 3 over plain torch.distributed."""

if __name__ == "reference_engine":
    raise ImportError("import zprof.reference_engine, not reference_engine")
