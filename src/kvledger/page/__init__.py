"""What a verb shows a person: blocks, drawn by `terminal` with rich or by `html` as one self-contained file."""
