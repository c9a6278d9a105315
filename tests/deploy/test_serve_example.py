"""The example server answers what fits, names what does not, and lets no client block another."""

import importlib.util
import json
import socket
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from gymnasium import spaces

from algorithms.ppo import PPOCatalog, PPOModule
from rlmodule import Policy

SERVER = Path(__file__).resolve().parents[2] / "examples" / "serve" / "server.py"


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    spec = importlib.util.spec_from_file_location("example_server", SERVER)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    module = PPOModule(
        observation_space=spaces.Box(-1, 1, (3,)),
        action_space=spaces.Box(-1, 1, (2,)),
        model_config={"fcnet_hiddens": [8]},
        catalog_class=PPOCatalog,
    )
    server = example.server_of(str(Policy(module).export(tmp_path_factory.mktemp("serve") / "policy.onnx")))
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server.server_port
    server.shutdown()
    server.server_close()


def answer_to(port: int, body: bytes, headers: dict[str, str] | None = None) -> tuple[int, Any]:
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", "/", body, headers or {})
    answer = connection.getresponse()
    content = json.loads(answer.read(), parse_constant=pytest.fail)  # NaN is no JSON
    connection.close()
    return answer.status, content


def test_observations_are_answered_with_actions(port: int) -> None:
    status, answer = answer_to(port, b'{"obs": [[0.1, 0, 1], [0, 0, 0]]}')
    assert status == 200
    assert [len(action) for action in answer["action"]] == [2, 2]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff\xfe",
        b"{",
        b"[" * 100_000,
        b"[]",
        b"3",
        b"{}",
        b'{"other": [[0, 0, 0]]}',
        b'{"obs": [[0, 0, 0]], "more": 1}',
        b'{"obs": null}',
        b'{"obs": {}}',
        b'{"obs": "0"}',
        b'{"obs": [["0", "0", "0"]]}',
        b'{"obs": [[0, 0], [0, 0, 0]]}',
        b'{"obs": [[0, 0]]}',
        b'{"obs": [0, 0, 0]}',
        b'{"obs": [[NaN, 0, 0]]}',
        b'{"obs": [[Infinity, 0, 0]]}',
        b'{"obs": [[1e400, 0, 0]]}',
        b'{"obs": [[1e39, 0, 0]]}',
        b'{"obs": [[' + b"9" * 500 + b", 0, 0]]}",
    ],
    ids=lambda body: body[:30].decode(errors="replace"),
)
@pytest.mark.filterwarnings("ignore:overflow encountered in cast:RuntimeWarning")
def test_a_request_that_does_not_fit_is_answered_with_its_error(port: int, body: bytes) -> None:
    status, answer = answer_to(port, body)
    assert (status, [*answer]) == (400, ["error"])
    assert "expected" in answer["error"]


@pytest.mark.parametrize("length", ["", "-1", "x", "1e3", "50000001", "9" * 5000])
def test_a_length_that_cannot_be_is_refused_unread(port: int, length: str) -> None:
    status, answer = answer_to(port, b"{}", {"Content-Length": length})
    assert status == 400
    assert "expected a Content-Length" in answer["error"]


def test_silent_clients_block_nobody(port: int) -> None:
    silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(3)]
    silent[0].sendall(b"POST / HTTP/1.1\r\nContent-Length: 100\r\n\r\n{")
    assert answer_to(port, b'{"obs": [[0, 0, 0]]}')[0] == 200
    for client in silent:
        client.close()
