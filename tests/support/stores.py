"""A store that can be away: a port on which it listens, or doesn't."""

import contextlib
import socket
import threading


class Store:
    """Answer each connection, until it is closed or has given a number of answers."""

    def __init__(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self._listener: socket.socket | None = None
        self._thread: threading.Thread | None = None

    def open(self, answers: int | None = None) -> None:
        """Listen. After that many answers it is away again."""
        self.close()
        self._listener = socket.create_server(("127.0.0.1", self.port), backlog=64)
        self._thread = threading.Thread(target=self._serve, args=(self._listener, answers), daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Refuse connections."""
        if self._listener is not None and self._thread is not None:
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)  # ends the accept
            self._listener.close()
            self._thread.join()
            self._listener = self._thread = None

    @staticmethod
    def _serve(listener: socket.socket, answers: int | None) -> None:
        with contextlib.suppress(OSError):
            while answers is None or answers > 0:
                connection, _ = listener.accept()
                with connection:
                    connection.sendall(b"ok")
                answers = None if answers is None else answers - 1
            listener.close()


def ask(port: int) -> None:
    """Connect to a store, and wait for its answer.

    Raises:
        ConnectionError: it is away.
    """
    with socket.create_connection(("127.0.0.1", port)) as connection:
        if connection.recv(2) != b"ok":
            raise ConnectionResetError("the store has closed the connection")
