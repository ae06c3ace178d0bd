"""An audit said: on a terminal, as JSON, as one HTML file, as SARIF, and as a gate for CI."""
