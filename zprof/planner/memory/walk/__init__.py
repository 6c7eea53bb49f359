"""Walk through a step phase by phase and find its memory peak."""
