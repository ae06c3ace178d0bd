"""The logs people already have, one file for each form: each line or item becomes records, or a reason why not."""
