"""Finds a port: `python -m simulator.ports 8001` prints the first from there on that nothing listens on."""

import socket
import sys


def first_free(start: int) -> int:
    """The first TCP port of 127.0.0.1 from `start` on that is free. Raises OSError if none of a hundred is."""
    for port in range(start, start + 100):
        try:
            with socket.create_server(("127.0.0.1", port)):
                return port
        except OSError:
            continue
    raise OSError(f"no free port from {start} on")


if __name__ == "__main__":
    sys.stdout.write(f"{first_free(int(sys.argv[1]))}\n")
