"""A TCP proxy on loopback that cuts a connection after requests were forwarded and before all replies were."""

import selectors
import socket
import threading
from collections.abc import Callable

_CHUNK = 1 << 16


class Proxy:
    """Forwards to 127.0.0.1:`port`.

    Attributes:
        url: where it listens.
        cuts: how many connections it has cut.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._listener.getsockname()[1]}/0"
        self.cuts = 0
        self._pass_bytes: int | None = None
        self._meanwhile: Callable[[], None] = _nothing
        self._waker, self._woken = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._pairs: dict[socket.socket, socket.socket] = {}
        self._to_server: set[socket.socket] = set()
        self._thread = threading.Thread(target=self._run, name="proxy")
        self._thread.start()

    def cut_replies(self, after_bytes: int = 0, meanwhile: Callable[[], None] | None = None) -> None:
        """Let so many more bytes of replies pass, then cut that connection, once; `meanwhile` runs before the cut."""
        self._meanwhile = meanwhile or _nothing
        self._pass_bytes = after_bytes

    def lead_to(self, port: int) -> None:
        """Where new connections lead from now on; open ones stay, as behind a name that was given to another server."""
        self._target = port

    def close(self) -> None:
        self._waker.send(b"x")
        self._thread.join()
        for end in (*self._pairs, self._listener, self._waker, self._woken):
            end.close()
        self._selector.close()

    def _run(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._woken:
                    return
                if key.fileobj is self._listener:
                    self._accept()
                elif isinstance(key.fileobj, socket.socket) and key.fileobj in self._pairs:
                    self._forward(key.fileobj)

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        try:
            server = socket.create_connection(("127.0.0.1", self._target))
        except OSError:
            client.close()
            return
        self._pairs[client], self._pairs[server] = server, client
        self._to_server.add(client)
        for end in (client, server):
            self._selector.register(end, selectors.EVENT_READ)

    def _forward(self, end: socket.socket) -> None:
        other = self._pairs[end]
        try:
            data = end.recv(_CHUNK)
            if end not in self._to_server and self._pass_bytes is not None:
                data, left = data[: self._pass_bytes], self._pass_bytes - len(data)
                self._pass_bytes = max(0, left)
                if left < 0:
                    other.sendall(data)
                    self._pass_bytes = None
                    self._meanwhile()
                    self.cuts += 1
                    data = b""
            if data:
                other.sendall(data)
        except OSError:
            data = b""
        if not data:
            self._drop(end, other)

    def _drop(self, *ends: socket.socket) -> None:
        for end in ends:
            del self._pairs[end]
            self._to_server.discard(end)
            self._selector.unregister(end)
            end.close()


def _nothing() -> None:
    pass
