"""Measuring our own engine: what to compute, how fast it goes, and how long a start takes."""
