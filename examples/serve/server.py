"""A server that answers observations with actions over HTTP. It needs onnxruntime and numpy alone.

``play.py`` next to it shows a client. From a shell: ``python server.py policy.onnx 8000``.
"""

import json
import sys
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import onnxruntime

MOST_BYTES = 50_000_000
"""Longest request. Images of a few hundred envs fit into it."""


class BadRequest(ValueError):
    """Raised for a request that no client should send. Its text is the answer."""


def server_of(file: str, port: int = 0) -> ThreadingHTTPServer:
    """Return a server that answers ``{"obs": [[…]], …}``, the inputs by name, with the outputs by name.

    A request that does not fit gets status 400 and ``{"error": …}``. Each client has a thread, and 10 seconds for each
    request, so that none makes others wait.
    """
    session = onnxruntime.InferenceSession(file)
    inputs = json.loads(session.get_modelmeta().custom_metadata_map["catalog_rl"])["inputs"]
    names = [output.name for output in session.get_outputs()]

    def outputs_for(body: bytes) -> dict[str, Any]:
        arrays = inputs_in(body, inputs)
        try:
            outputs = session.run(names, arrays)
        except Exception as error:  # onnxruntime's own errors share no base class
            raise BadRequest(f"expected inputs of the shapes in the file, got others ({error})") from error
        return {name: output.tolist() for name, output in zip(names, outputs, strict=True)}

    class Answers(BaseHTTPRequestHandler):
        timeout = 10

        def do_POST(self) -> None:
            try:
                status, answer = 200, json.dumps(outputs_for(self.body()), allow_nan=False)
            except BadRequest as error:
                status, answer = 400, json.dumps({"error": str(error)})
            except ValueError as error:  # an output that JSON cannot hold
                status, answer = 500, json.dumps({"error": str(error)})
            with suppress(ConnectionError):  # the client has left
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer.encode())

        def body(self) -> bytes:
            length = self.headers.get("Content-Length", "")
            is_length = length.isascii() and length.isdigit() and len(length) < 10
            if not is_length or int(length) > MOST_BYTES:
                self.close_connection = True  # where the next request would begin is unknown
                raise BadRequest(f"expected a Content-Length of at most {MOST_BYTES}, got {length[:30]!r}")
            return self.rfile.read(int(length))

        def log_message(self, *_: object) -> None:
            """Print nothing for each request."""

    return ThreadingHTTPServer(("127.0.0.1", port), Answers)


def inputs_in(body: bytes, inputs: dict[str, Any]) -> dict[str, np.ndarray]:
    """Return the arrays in the JSON object ``body`` by name, with the dtypes of ``inputs``.

    Raises:
        BadRequest: If ``body`` is no such object, or an array is missing, ragged, out of range or not finite.
    """
    try:
        given = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"expected JSON, got {error}") from error
    if not isinstance(given, dict) or given.keys() != inputs.keys():
        got = sorted(given) if isinstance(given, dict) else type(given).__name__
        raise BadRequest(f"expected an object with {sorted(inputs)}, got {got}")
    arrays = {}
    for name, item in inputs.items():
        try:
            numbers = np.asarray(given[name])
            arrays[name] = numbers.astype(item["dtype"])
        except (ValueError, TypeError, OverflowError) as error:
            raise BadRequest(f"{name}: expected an array of {item['dtype']}, got {error}") from error
        is_number = numbers.dtype.kind in "biuf"
        if not (is_number and np.isfinite(arrays[name]).all() and np.allclose(arrays[name], numbers)):
            raise BadRequest(f"{name}: expected finite numbers in the range of {item['dtype']}, got others")
    return arrays


if __name__ == "__main__":
    server_of(sys.argv[1], int(sys.argv[2])).serve_forever()
