"""What opens above a screen: a number, a finding, a list to pick from, a line to type."""
