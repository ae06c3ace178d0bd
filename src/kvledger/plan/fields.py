"""Values of a model's configuration, read with a type; a wrong or missing one is an error that names file and key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvledger.errors import ModelFileError

_MOST = 10**12
"""No size of a model comes near it; anything above is a damaged file."""

MOST_LAYERS = 10_000
_PER_LAYER = frozenset(("num_hidden_layers", "num_layers", "n_layer"))


class Fields:
    """The keys of a `config.json`, or the same taken from elsewhere. `source` is what errors call it."""

    def __init__(self, source: str, values: Mapping[str, Any]) -> None:
        self.source = source
        self._values = values

    def get(self, key: str) -> Any:
        """The raw value, None where there is none."""
        return self._values.get(key)

    def missing(self, key: str, why: str) -> ModelFileError:
        """The error for a value that cannot be used."""
        value = self.get(key)
        found = f"no {key}" if value is None else f"{key} = {value!r}"
        return ModelFileError(f"{self.source} has {found}: {why} is needed.")

    def size(self, *keys: str, default: int | None = None) -> int:
        """The first of `keys` that is there: a whole number above zero."""
        for key in keys:
            if self.get(key) is not None:
                return self._whole(key, least=1)
        if default is None:
            raise self.missing(keys[0], "a whole number above zero")
        return default

    def count(self, key: str, default: int | None = None) -> int:
        """A whole number, zero included."""
        if self.get(key) is None and default is not None:
            return default
        return self._whole(key, least=0)

    def optional_size(self, key: str) -> int | None:
        """A whole number above zero, or None where there is none or a zero."""
        return None if self.get(key) in (None, 0) else self._whole(key, least=1)

    def flag(self, key: str, default: bool = False) -> bool:
        """True or false."""
        value = self.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.missing(key, "true or false")
        return value

    def names(self, key: str, length: int) -> list[str] | None:
        """A list of one word per layer, or None where there is none."""
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) != length or not all(isinstance(name, str) for name in value):
            raise ModelFileError(f"{self.source}: {key} must hold one word for each of the {length} layers.")
        return value

    def _whole(self, key: str, *, least: int) -> int:
        value = self.get(key)
        if type(value) is not int or not least <= value < _MOST:
            raise self.missing(key, "a whole number above zero" if least else "a whole number")
        if key in _PER_LAYER and value > MOST_LAYERS:
            raise self.missing(key, f"a number of layers up to {MOST_LAYERS:,}")
        return value
