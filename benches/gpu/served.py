"""A server for the scripts of this folder, and what they ask it. Nothing but the standard library is needed."""

import contextlib
import http.client
import json
import socket
import subprocess
import sys
import time


def free_port():
    with socket.socket() as socket_:
        socket_.bind(("127.0.0.1", 0))
        return socket_.getsockname()[1]


def get(port, path, timeout=5):
    """The status and the bytes of a reply."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    connection.request("GET", path)
    reply = connection.getresponse()
    return reply.status, reply.read()


def post(port, path, body):
    """The JSON of a reply, which may take minutes."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    return json.loads(connection.getresponse().read())


@contextlib.contextmanager
def serving(kvas, model, *flags):
    """The port of a server of the model, once it answers."""
    port = free_port()
    command = [kvas, "serve", "-m", model, "--port", str(port), *map(str, flags)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=sys.stderr)
    try:
        while True:
            with contextlib.suppress(OSError):
                if get(port, "/health")[0] == 200:
                    break
            if server.poll() is not None:
                sys.exit(f"{kvas}: exit code {server.returncode} before it served")
            time.sleep(0.1)
        yield port
    finally:
        server.terminate()
        server.wait()
