"""A local server that answers like the Hugging Face hub for one repository in a folder."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@contextmanager
def serve_hub(repository: str, folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Serve the files of `folder` as `repository`; yield the endpoint and the growing list of files fetched."""
    fetched: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self._answer(body=False)

        def do_GET(self) -> None:
            self._answer(body=True)

        def _answer(self, body: bool) -> None:
            path = self.path.split("?")[0]
            files = sorted(folder.iterdir())
            if path.startswith(f"/api/models/{repository}/tree/"):
                self._send_json([{"type": "file", "path": f.name, "size": f.stat().st_size, "oid": ""} for f in files])
            elif path.startswith(f"/api/models/{repository}"):
                siblings = [{"rfilename": file.name} for file in files]
                self._send_json({"id": repository, "sha": COMMIT, "siblings": siblings})
            elif path.startswith(f"/{repository}/resolve/") and (file := folder / path.rsplit("/", 1)[1]).exists():
                data = file.read_bytes()
                if body:
                    fetched.append(file.name)
                self._send(200, data, body, {"ETag": f'"{hashlib.sha256(data).hexdigest()}"', "X-Repo-Commit": COMMIT})
            else:
                code = "EntryNotFound" if path.startswith(f"/{repository}/") else "RepoNotFound"
                self._send(404, b"", body, {"X-Error-Code": code, "X-Error-Message": "not found"})

        def _send_json(self, value: object) -> None:
            self._send(200, json.dumps(value).encode(), True, {"Content-Type": "application/json"})

        def _send(self, status: int, data: bytes, body: bool, headers: dict[str, str]) -> None:
            self.send_response(status)
            for name, value in (headers | {"Content-Length": str(len(data))}).items():
                self.send_header(name, value)
            self.end_headers()
            if body:
                self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", fetched
    finally:
        server.shutdown()
        server.server_close()
