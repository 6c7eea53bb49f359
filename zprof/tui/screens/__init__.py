"""The screens: each puts the pages of one question on the terminal."""
