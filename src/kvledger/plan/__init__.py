"""Memory and money, worked out before anything is bought."""
