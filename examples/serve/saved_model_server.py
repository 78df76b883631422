"""Serves SavedModels by the REST form of TensorFlow Serving, to test clients where that server is not at hand.

    python examples/serve/saved_model_server.py runs/serve/models --port 8501

The script needs only the packages tensorflow and tensorflow-text. The newest version of a model is served.
"""

import argparse
import http.server
import json
import pathlib

import numpy as np
import tensorflow as tf
import tensorflow_text  # noqa: F401  # the operations of the tokenizers


def predict(model, request):
    """The answer to a request with rows ("instances") or columns ("inputs")."""
    if not isinstance(request, dict) or ("instances" in request) == ("inputs" in request):
        raise ValueError('expected a JSON object with either "instances" or "inputs"')
    signature = model.signatures[request.get("signature_name", "serving_default")]
    specs = signature.structured_input_signature[1]
    given = request.get("inputs", request.get("instances"))
    if "instances" in request and given and isinstance(given[0], dict):
        given = {name: [row[name] for row in given] for name in specs}
    given = given if isinstance(given, dict) else dict.fromkeys(specs, given)  # of a model with one input
    tensors = {name: tf.ensure_shape(tf.constant(given[name], spec.dtype), spec.shape) for name, spec in specs.items()}
    arrays = {name: value.numpy() for name, value in signature(**tensors).items()}
    decode = np.vectorize(bytes.decode, otypes=["O"])
    columns = {name: (decode(x) if x.dtype == object else x).tolist() for name, x in arrays.items()}
    if "inputs" in request:
        return {"outputs": columns if len(columns) > 1 else [*columns.values()][0]}
    rows = [dict(zip(columns, row)) for row in zip(*columns.values())]
    return {"predictions": rows if len(columns) > 1 else [*columns.values()][0]}


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version, wbufsize = "HTTP/1.1", -1  # connections are kept; headers and body leave together
    models = {}  # path -> version and model

    def answer(self, code, content):
        body = json.dumps(content).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        if self.path not in self.models:
            return self.answer(404, {"error": f"Servable not found for request: {self.path}"})
        status = {"state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}
        self.answer(200, {"model_version_status": [{"version": self.models[self.path][0], **status}]})

    def do_POST(self):
        body, path = self.rfile.read(int(self.headers["Content-Length"])), self.path.removesuffix(":predict")
        if path == self.path or path not in self.models:
            return self.answer(404, {"error": f"Servable not found for request: {self.path}"})
        try:
            self.answer(200, predict(self.models[path][1], json.loads(body)))
        except (ValueError, KeyError, TypeError, tf.errors.OpError) as error:
            self.answer(400, {"error": f"{type(error).__name__}: {error}"})

    def log_message(self, *arguments):
        pass


class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 128  # connections that wait to be accepted


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path, help="holds the models, as NAME/VERSION/saved_model.pb")
    parser.add_argument("--port", type=int, default=8501, help="0 takes a free one (default: 8501)")
    options = parser.parse_args()
    files = sorted(options.folder.glob("*/*/saved_model.pb"), key=lambda file: int(file.parts[-2]))
    for name, version in {file.parts[-3]: file.parts[-2] for file in files}.items():
        Handler.models[f"/v1/models/{name}"] = version, tf.saved_model.load(options.folder / name / version)
    with Server(("127.0.0.1", options.port), Handler) as server:
        print(f"Serving {', '.join(Handler.models)} at http://127.0.0.1:{server.server_port}", flush=True)
        server.serve_forever()
