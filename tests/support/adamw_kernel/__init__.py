"""The CUDA kernel of AdamW in tests: the same source on the CPU, and AdamW in float64."""
