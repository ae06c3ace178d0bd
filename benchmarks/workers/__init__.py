"""One engine per file, each run as a process of its own by `benchmarks/peers.py` and told what to do over a pipe."""
