"""Settings for every test, made before NumPy is loaded, and what several rooms share."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

from kvledger.errors import ModelNotFoundError

# The matrices of the tests are small: on a busy machine the spinning threads of OpenBLAS cost twenty times the work.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# How long one example takes says more about what else the machine is doing than about the code.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The GGUF file of the default model; tests that want it are skipped where it has not been pulled."""
    from kvledger.model.store import resolve  # noqa: PLC0415 (it loads NumPy)

    try:
        return resolve("smollm2")
    except ModelNotFoundError as error:
        pytest.skip(str(error))
