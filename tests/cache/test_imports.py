from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import pkgutil, importlib, sys
import kvledger.cache
for module in pkgutil.iter_modules(kvledger.cache.__path__):
    importlib.import_module("kvledger.cache." + module.name)
rooms = {name.split(".")[1] for name in sys.modules if name.startswith("kvledger.")}
foreign = {name.split(".")[0] for name in sys.modules} - set(sys.stdlib_module_names) - {"kvledger", "__main__"}
print(sorted(rooms), "numpy" in foreign)
"""


def test_the_room_imports_only_what_lies_below_it():
    printed = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert printed.stdout.strip() == "['cache', 'clock', 'errors', 'text'] False"
