"""Integer division that rounds up, for shares of elements, ranks and layers."""


def ceil_div(total: int, parts: int) -> int:
    """Divide integers and round up."""
    return -(-total // parts)
