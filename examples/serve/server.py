"""A server that answers observations with actions over HTTP. It needs onnxruntime and numpy alone.

``play.py`` next to it shows a client. From a shell: ``python server.py policy.onnx 8000``.
"""

import json
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

import numpy as np
import onnxruntime


def server_of(file: str, port: int = 0) -> HTTPServer:
    """Return a server that answers ``{"obs": [[…]], …}``, the inputs by name, with the outputs by name."""
    session = onnxruntime.InferenceSession(file)
    inputs = json.loads(session.get_modelmeta().custom_metadata_map["catalog_rl"])["inputs"]
    names = [output.name for output in session.get_outputs()]

    class Answers(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            given = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            arrays = {name: np.asarray(given[name], item["dtype"]) for name, item in inputs.items()}
            outputs = session.run(names, arrays)
            answer = json.dumps({name: out.tolist() for name, out in zip(names, outputs, strict=True)}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            """Print nothing for each request."""

    return HTTPServer(("127.0.0.1", port), Answers)


if __name__ == "__main__":
    server_of(sys.argv[1], int(sys.argv[2])).serve_forever()
