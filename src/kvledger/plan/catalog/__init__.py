"""Public models and accelerators, as data: `models.toml` and `accelerators.toml`, each entry with source and date."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from kvledger.errors import PlanError

_FOLDER = Path(__file__).parent
_GIGA = 10**9
_TERA = 10**12


@dataclass(frozen=True, slots=True)
class CataloguedModel:
    """A model by name: the fields of its published configuration that planning needs.

    `parameters` is the published count, where one is known to the last parameter.
    """

    name: str
    source: str
    recorded: str
    parameters: int | None
    config: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Accelerator:
    """What a vendor says of an accelerator. `flops` is the peak per second without sparsity, by data type.

    `memory` is in bytes, the vendor's GB taken as 10^9; `bandwidth` is of that memory, in bytes per second.
    """

    name: str
    title: str
    source: str
    recorded: str
    memory: int
    bandwidth: int
    flops: Mapping[str, int]


@cache
def models() -> Mapping[str, CataloguedModel]:
    """All models, by name."""
    found = {}
    for name, entry in _read("models.toml").items():
        values = dict(entry)
        source, recorded, parameters = values.pop("source"), values.pop("recorded"), values.pop("parameters", None)
        found[name] = CataloguedModel(name, source, str(recorded), parameters, values)
    return found


@cache
def accelerators() -> Mapping[str, Accelerator]:
    """All accelerators, by name."""
    found = {}
    for name, entry in _read("accelerators.toml").items():
        flops = {dtype: round(tera * _TERA) for dtype, tera in entry["tflops"].items()}
        found[name] = Accelerator(
            name,
            entry["title"],
            entry["source"],
            str(entry["recorded"]),
            round(entry["memory_gb"] * _GIGA),
            round(entry["bandwidth_gb_s"] * _GIGA),
            flops,
        )
    return found


def catalogued_model(name: str) -> CataloguedModel:
    """The model called `name`, or the one published in the repository `name`; raises `PlanError` with near names."""
    by_repository = {entry.source.split(" ")[0].lower(): entry for entry in models().values()}
    entry = models().get(name.lower()) or by_repository.get(name.lower())
    if entry is not None:
        return entry
    near = _near(name, models()) or "give a config.json or a .gguf file instead."
    raise PlanError(
        f"There is no model or file called {name!r}: {near} `kvledger plan models` lists all that are known."
    )


def catalogued_accelerator(name: str) -> Accelerator:
    """The accelerator called `name`; raises `PlanError` with near names."""
    entry = accelerators().get(name.lower())
    if entry is not None:
        return entry
    near = _near(name, accelerators()) or "give another."
    raise PlanError(f"The accelerator {name!r} is not known: {near} `kvledger plan gpus` lists all that are known.")


def _near(name: str, known: Iterable[str]) -> str:
    """A question with the names that begin like `name`, else are spelt like it or begin with a word that is."""
    wanted, names = name.lower().rpartition("/")[2], list(known)
    if not wanted:
        return ""
    found = [each for each in names if each.startswith(wanted)]
    found = found or difflib.get_close_matches(wanted, names, n=3, cutoff=0.5)
    if not found:
        stems = difflib.get_close_matches(wanted, {each.partition("-")[0] for each in names}, n=1, cutoff=0.7)
        found = [each for each in names if each.partition("-")[0] in stems]
    return f"did you mean {' or '.join(found[:3])}?" if found else ""


def _read(file: str) -> Mapping[str, Mapping[str, Any]]:
    with (_FOLDER / file).open("rb") as opened:
        return tomllib.load(opened)
