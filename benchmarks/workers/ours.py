"""Our own engine: `LlamaModel.forward` over a paged pool, as `kvledger bench engine` measures it.

Settings: `fast` (int8 activations) and `exact` (float32 activations); KV in f16.
"""

from __future__ import annotations

from kvledger import __version__
from kvledger.bench.engine import EngineBench
from workers.pipe import options, serve

if __name__ == "__main__":
    given = options()
    bench = EngineBench(given.model, mode=given.setting, threads=given.threads)
    serve(given, f"kvledger {__version__}", bench.seconds)
