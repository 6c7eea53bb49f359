"""Quantities as text: bytes in binary units, times in the unit that leaves one to three digits."""

_BINARY = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
_TIME = ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "µs"))


def format_bytes(count_bytes: float) -> str:
    """``1572864`` as ``1.5 MiB``; below 1 KiB the plain count."""
    for unit, name in _BINARY:
        if abs(count_bytes) >= unit:
            return f"{count_bytes / unit:.1f} {name}"
    return f"{count_bytes:.0f} B"


def format_ns(duration_ns: float) -> str:
    """``412000000`` as ``412.0 ms``."""
    for unit, name in _TIME:
        if abs(duration_ns) >= unit:
            return f"{duration_ns / unit:.1f} {name}"
    return f"{duration_ns:.0f} ns"


def format_ms(duration_ns: float) -> str:
    """A column of times in one unit: milliseconds with one decimal, without the unit."""
    return f"{duration_ns / 1e6:.1f}"


def format_percent(ratio: float) -> str:
    """``0.384`` as ``38.4 %``."""
    return f"{ratio * 100:.1f} %"


def format_rate(bytes_per_s: float) -> str:
    """Bandwidth in decimal gigabytes (or megabytes) a second, as links are sold."""
    if bytes_per_s >= 1e9:
        return f"{bytes_per_s / 1e9:.1f} GB/s"
    return f"{bytes_per_s / 1e6:.1f} MB/s"
