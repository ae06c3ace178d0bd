"""Reads the logs people already have, and says what the cache lost, why, and the smallest change that gets it back."""
