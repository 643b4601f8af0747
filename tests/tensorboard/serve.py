"""TensorBoard's server, for as long as a test needs it."""
import contextlib
import os
import socket
import subprocess
import sys


@contextlib.contextmanager
def tensorboard(folder):
    """The process and its address. It may need some seconds until it answers."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", folder, "--host", "127.0.0.1", "--port", str(port)]
    with open(os.path.join(folder, "server.log"), "w") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield server, f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()
