"""One file per trace format: what a line of it means."""
