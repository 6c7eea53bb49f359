"""Causes of slow, stuck or oversized steps, one file each; ``cause`` defines their record."""
