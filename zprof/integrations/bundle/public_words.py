"""Words that others publish and that say nothing of who uses them: devices, types, settings, units."""

#: What stands behind a number, and means nothing elsewhere.
UNITS = frozenset(
    (
        "%", "s", "ms", "µs", "us", "ns", "h", "min", "B", "KiB", "MiB", "GiB", "TiB", "B/s",
        "KB/s", "MB/s", "GB/s", "TB/s", "MHz", "W", "°C", "x", "times",
    )
)  # fmt: skip
PUBLIC = frozenset(
    (
        # Systems and machines.
        "Linux", "Darwin", "Windows", "x86_64", "aarch64", "arm64", "ppc64le",
        # Devices.
        "NVIDIA", "AMD", "Tesla", "Instinct", "GeForce", "RTX", "Quadro", "Radeon", "PCIe", "NVL",
        "HBM3", "HBM3e", "80GB", "A10", "A30", "A40", "A100", "A800", "H20", "H100", "H200", "H800",
        "GH200", "GB200", "GB300", "B200", "B300", "L4", "L40", "L40S", "T4", "V100", "P100",
        "3090", "4090", "5090", "MI100", "MI210", "MI250", "MI250X", "MI300A", "MI300X", "MI325X",
        "MI355X", "A100-SXM4-40GB", "A100-SXM4-80GB", "A100-PCIE-40GB", "V100-SXM2-16GB",
        "V100-SXM2-32GB",
        # Backends, and types as traces name them.
        "cuda", "hip", "cpu", "gloo", "nccl", "rccl", "mpi", "ucc", "Float", "Half", "BFloat16",
        "Double", "Byte", "Char", "Short", "Int", "Long", "Bool",
        # Operators of torch.distributed, which buffers are named after.
        "all_gather_into_tensor", "all_gather_base", "reduce_scatter_tensor", "reduce_scatter_base",
        # Values of torch's and NCCL's variables.
        "True", "False", "native", "cudaMallocAsync", "backend", "expandable_segments",
        "max_split_size_mb", "garbage_collection_threshold", "roundup_power2_divisions", "Ring",
        "Tree", "CollNet", "CollnetChain", "CollnetDirect", "NVLS", "NVLSTree", "PAT", "LL",
        "LL128", "Simple", "INFO", "WARN", "TRACE", "VERSION", "ABORT", "PIX", "PXB", "PHB", "SYS",
        "LOC",
    )
)  # fmt: skip
