"""The report as plain text in 80 columns, a module a part."""
