"""Integer division for sizes that must round up: parts of elements, ranks and layers."""


def ceil_div(whole: int, parts: int) -> int:
    """Divide integers and round up."""
    return -(-whole // parts)
