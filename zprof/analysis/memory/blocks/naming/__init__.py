"""Names the tenant of a block that no hook saw: by the program's own tag, else by a rule."""
