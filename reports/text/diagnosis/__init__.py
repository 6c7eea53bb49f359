"""The diagnosis as plain text: the answer of one or two screens, a module a part."""
