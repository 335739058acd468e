"""A worker as the launcher sees it: asks the server (fork_server.py) for the real one, and ends as that does.

python -I -S fork_client.py SOCKET FOLDER
"""

import json
import os
import signal
import socket
import sys


def main() -> int:
    path, folder = sys.argv[1:]
    job = {"environment": dict(os.environ), "cwd": os.getcwd(), "folder": folder}
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    message = json.dumps(job).encode() + b"\n"
    sent = socket.send_fds(connection, [message], [1])
    connection.sendall(message[sent:])
    os.close(1)
    answer = connection.recv(16)
    if not answer:
        print("the server that starts workers has gone", file=sys.stderr)
        return 1
    code = int(answer)
    if code < 0:
        os.kill(os.getpid(), -code)
        signal.pause()
    return code


if __name__ == "__main__":
    sys.exit(main())
