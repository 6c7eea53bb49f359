"""What moves more often, or in more bytes, than the stage needs: proven without a clock."""
