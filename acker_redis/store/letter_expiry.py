"""Retention of dead letters: removal of those that are older than the app's limit, step by step."""

from acker_redis.client import scripts
from acker_redis.client.client import Client
from acker_redis.model import keys
from acker_redis.store import limits

LETTERS_PER_STEP = 200
"""Number of letters that a step looks at. Fewer if they are large."""

_DAY_MS = 24 * 3600 * 1000


class LetterExpiry:
    """One pass over the dead letters of an app that are older than `Limits.dead_letter_days`.

    Letters stay while their replay is requested, because one call of a script looks for the request and removes the letter.
    All other entries of that age are removed, also damaged ones and letters marked `unwritten`. A letter that an offset of
    Kafka waits for is then written again, as if the server had lost it.

    Attributes:
        removed: number of letters removed so far.
        is_over: True if no letter is left to remove.
    """

    def __init__(self, client: Client, app: str) -> None:
        """Begin with the oldest letter."""
        self.removed = 0
        self.is_over = False
        self._client, self._app = client, app
        self._after = ""
        self._spout_ids = [0]

    def step(self) -> None:
        """Look at some letters, and remove those that are too old, in one short call. Without a retention, do nothing.

        Raises:
            DamagedDataError: the limits hold a value that is not a limit.
            AckerError: the server refuses or fails.
        """
        days = limits.read(self._client, self._app).dead_letter_days
        if days is None:
            self.is_over = True
            return
        script = scripts.load("expire_letters")
        named = {
            "expired_letters": keys.expired_letters(self._app),
            "dead_letters": keys.dead_letters(self._app),
            "replay_takers": keys.replay_takers(self._app),
            "replays": [keys.replays(self._app, spout_id) for spout_id in self._spout_ids],
        }
        call = script.call(named, round(days * _DAY_MS), self._after, LETTERS_PER_STEP, *self._spout_ids)
        ((status, removed, after, *needed),) = self._client.run([call])
        self.removed += removed
        self._after = after.decode()
        self.is_over = status == script.codes["DONE"]
        if status == script.codes["SPOUT_IDS"]:  # the next step names them
            self._spout_ids = [int(spout_id) for spout_id in needed]
