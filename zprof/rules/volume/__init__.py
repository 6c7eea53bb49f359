"""Rules about traffic in excess of the ZeRO stage's needs: proven by counts and bytes, not by times."""
