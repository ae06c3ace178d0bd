"""Settings for every test, made before NumPy is loaded."""

import os

# The matrices of the tests are small: on a busy machine the spinning threads of OpenBLAS cost twenty times the work.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
