"""Whole numbers that a division must not make smaller: parts of elements, ranks and layers."""


def ceil_div(whole: int, parts: int) -> int:
    """Integer division that rounds up."""
    return -(-whole // parts)
