"""What the cache does, shown step by step with the code that the server runs."""
