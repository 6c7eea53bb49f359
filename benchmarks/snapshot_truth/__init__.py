"""CUDA memory snapshots of random programs whose owners are known, held against what zprof says of them."""
