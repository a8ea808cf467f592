"""Calls of scripts as commands: FCALL if this version's functions are loaded, else EVALSHA, else EVAL with the text."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import redis

from acker_redis.client import function_library, scripts
from acker_redis.client.error_mapping import is_denied, is_no_function
from acker_redis.client.scripts import Argument, Call, Command


class ScriptCalls:
    """Sends calls in the way that this server supports. The first calls detect it.

    Args:
        send: function that sends commands. An error of redis-py replaces the reply of its command.
        knows_shebang: function that returns True if the server knows `#!lua` lines. Called once.
    """

    def __init__(self, send: Callable[[Sequence[Command]], list[Any]], knows_shebang: Callable[[], bool]) -> None:
        self._send = send
        self._knows_shebang = knows_shebang
        self._by_function: bool | None = None
        self._texts: dict[str, tuple[str, bytes]] = {}

    def look_again(self) -> None:
        """Try functions again with the next call, because they may be loaded by then."""
        self._by_function = None

    def send(self, calls: Sequence[Call]) -> list[Any]:
        """Send one window of calls. An error of redis-py replaces the reply of its call."""
        replies: list[Any] = [None] * len(calls)
        todo = list(range(len(calls)))
        if self._by_function is not False:
            for i, reply in zip(todo, self._send([_fcall(call) for call in calls]), strict=True):
                replies[i] = reply
            todo = [i for i in todo if is_no_function(replies[i])]
            self._by_function = not todo
        for command in (self._evalsha, self._eval):  # with its text a call can't be refused again, whatever is flushed
            refused = self._send([command(calls[i]) for i in todo])
            for i, reply in zip(todo, refused, strict=True):
                replies[i] = reply
            todo = [i for i in todo if isinstance(replies[i], redis.exceptions.NoScriptError)]
        return replies

    def _evalsha(self, call: Call) -> Command:
        return ("EVALSHA", self._text(call.script)[0], len(call.keys), *call.keys, *call.args)

    def _eval(self, call: Call) -> Command:
        return ("EVAL", self._text(call.script)[1], len(call.keys), *call.keys, *call.args)

    def _text(self, script: scripts.Script) -> tuple[str, bytes]:
        cached = self._texts.get(script.name)
        if cached is None:
            text = script.text_for(shebang=self._knows_shebang())
            cached = self._texts[script.name] = (scripts.sha1(text), text)
        return cached


def windows(calls: Sequence[Call], window_bytes: int) -> Iterator[list[Call]]:
    """Split calls into pipelines of about `window_bytes` of arguments each."""
    window: list[Call] = []
    size = 0
    for call in calls:
        window.append(call)
        size += sum(len(arg) for arg in call.args if isinstance(arg, (bytes, str)))
        if size >= window_bytes:
            yield window
            window, size = [], 0
    if window:
        yield window


def key_of(command: Command) -> Argument:
    """Return the first key of a command. If its place varies, redis-py would ask the server each time."""
    if command[0] in ("FCALL", "EVALSHA", "EVAL"):
        return command[3]
    return command[command.index("STREAMS") + 1] if command[0] == "XREADGROUP" else command[1]


def denies_eval(exc: BaseException) -> bool:
    """Return True if the user may not send scripts."""
    return is_denied(exc) and "'eval" in str(exc).lower()


def _fcall(call: Call) -> Command:
    return ("FCALL", function_library.library().functions[call.script.name], len(call.keys), *call.keys, *call.args)
