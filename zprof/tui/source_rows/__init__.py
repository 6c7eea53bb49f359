"""The rows that numbers of the report were measured from, by leaf."""
