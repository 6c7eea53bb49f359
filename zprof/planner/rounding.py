"""Integer division for sizes that must round up: parts of elements, ranks and layers."""


def ceil_div(total: int, parts: int) -> int:
    """Divide integers and round up."""
    return -(-total // parts)
