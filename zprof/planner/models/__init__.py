"""Models: shapes by name, and the units that a shape is made of."""
