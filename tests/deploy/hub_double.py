"""A server on this machine that speaks those endpoints of the Hugging Face Hub that a policy needs."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

TOKEN = "of-a-test"


class HubDouble(ThreadingHTTPServer):
    """Repositories as lists of commits, each its files by name. ``asked`` has the paths of all requests."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repos: dict[str, dict[str, dict[str, bytes]]] = {}
        self.private: dict[str, bool] = {}
        self.asked: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def commit(self, repo: str, files: Mapping[str, bytes]) -> str:
        """Add a commit of exactly these files; returns its hash."""
        commits = self.repos.setdefault(repo, {})
        name = hashlib.sha1(f"{repo} {len(commits)}".encode()).hexdigest()
        commits[name] = dict(files)
        return name

    def newest(self, repo: str) -> dict[str, bytes]:
        return list(self.repos[repo].values())[-1] if self.repos[repo] else {}


class _Handler(BaseHTTPRequestHandler):
    server: HubDouble
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.asked.append(self.path)
        if self.headers["authorization"] != f"Bearer {TOKEN}":
            return self._answer({}, 401)
        if self.path == "/api/repos/create":
            given = json.loads(body)
            repo = f"{given['organization']}/{given['name']}"
            self.server.repos.setdefault(repo, {})
            self.server.private[repo] = given.get("private") or given.get("visibility") == "private"
            return self._answer({"url": f"{self.server.url}/{repo}"})
        if self.path == "/api/validate-yaml":
            return self._answer({})
        repo, action = re.fullmatch(r"/api/models/(\w+/\w+)/(\w+)/main", self.path).groups()  # type: ignore[union-attr]
        if action == "preupload":
            files = [{"path": one["path"], "uploadMode": "regular"} for one in json.loads(body)["files"]]
            return self._answer({"files": [one | {"shouldIgnore": False} for one in files]})
        assert action == "commit"
        files = dict(self.server.newest(repo))
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "deletedFile":
                del files[value["path"]]
        name = self.server.commit(repo, files)
        return self._answer({"commitUrl": f"{self.server.url}/{repo}/commit/{name}", "commitOid": name})

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        if self.headers["authorization"] != f"Bearer {TOKEN}":
            return self._answer({}, 401)
        of_api = re.match(r"/api/models/(\w+/\w+)/(revision|tree)/(\w+)", self.path)
        of_file = re.match(r"/(\w+/\w+)/(resolve)/(\w+)/(.+)", self.path)
        if (found := of_api or of_file) is None:
            return self._answer({})
        repo, kind, revision = found.groups()[:3]
        commits = self.server.repos.get(repo)
        if commits is None:
            return self._answer({}, 404, {"X-Error-Code": "RepoNotFound"})
        name = next(reversed(commits)) if revision == "main" and commits else revision
        if name not in commits and not (kind == "tree" and not commits):
            return self._answer({}, 404, {"X-Error-Code": "RevisionNotFound"})
        files = commits.get(name, {})
        if kind == "revision":
            return self._answer({"id": repo, "sha": name, "siblings": [{"rfilename": one} for one in files]})
        if kind == "tree":
            listed = [{"type": "file", "path": one, "size": len(files[one]), "oid": "0" * 40} for one in files]
            return self._answer(listed)
        content = files[found.group(4)]
        etag = f'"{hashlib.sha256(content).hexdigest()}"'
        return self._answer(content, 200, {"ETag": etag, "X-Repo-Commit": name})

    do_HEAD = do_GET

    def _answer(self, content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing for each request."""


@contextmanager
def hub_double() -> Iterator[HubDouble]:
    """Serve it while the block runs."""
    with HubDouble() as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()
