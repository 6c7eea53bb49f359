"""Pages by topic: the tables shared by all outputs, and the report sections that contain them."""
