"""Rules about the transfers of collectives: their timing, size and bandwidth."""
