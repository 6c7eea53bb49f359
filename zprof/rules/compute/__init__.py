"""What keeps devices from computing at full speed: their hosts, and what runs beside the kernels."""
