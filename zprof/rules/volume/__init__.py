"""Rules about traffic beyond what the ZeRO stage needs: proven by counts and bytes, not by times."""
