"""Handle of an opened app for the library's own layers. Programs use `Acker`."""

from collections.abc import Mapping, Sequence

from acker_redis.client.client import Client
from acker_redis.ledger.inspection import Inspection
from acker_redis.ledger.ledger import Ledger
from acker_redis.ledger.outcomes.delivery import Delivery
from acker_redis.ledger.rotation import Rotation
from acker_redis.ledger.shards import Shards
from acker_redis.model.config import AckerConfig
from acker_redis.store import (
    completed_offsets,
    outages,
    run_ends,
    run_ids,
    snapshot_numbers,
    stream_status,
    whole_letters,
)
from acker_redis.store.dead_letter import DeadLetterFilter
from acker_redis.store.lane_leases import Lease
from acker_redis.store.outages import Outage, SetAside
from acker_redis.store.payloads import Payloads
from acker_redis.store.run_ends import End
from acker_redis.store.selected_letters import SelectedLetters
from acker_redis.store.topology_state import TopologyState
from acker_redis.store.turns import Turn


class App:
    """Parts of one app, on one connected client.

    Attributes:
        client: client of the server.
        config: settings of the app.
        shards: opened shards.
        ledger: updates of roots.
        delivery: delivery of outcomes.
        rotation: ticks and expiry.
        inspection: read-only views.
    """

    def __init__(self, client: Client, config: AckerConfig, *, create: bool = True) -> None:
        """Open the app; see `Acker`."""
        self.client = client
        self.config = config
        self.shards = Shards(client, config, create=create)
        self.ledger = Ledger(self.shards)
        self.delivery = Delivery(self.shards)
        self.rotation = Rotation(self.shards)
        self.inspection = Inspection(self.shards)

    def close(self) -> None:
        """Close the connection; see `Acker.close`."""
        self.delivery.close()
        self.client.close()

    def reopen(self) -> list[int]:
        """Open the shards again after a loss of data; see `Acker.reopen`."""
        created = self.shards.reopen()
        self.ledger.forget_components()
        self.delivery.forget()
        return created

    def claim_run(self, run_id: str) -> None:
        """Claim a run id for a new run.

        The claim lasts a week, or four message timeouts plus `max_age_secs` if that is longer.

        Raises:
            BadConfigError: `run_id` is not a text of 1 to 100 characters, or an earlier run claimed it. Both runs would use
                the same roots and idempotency keys.
        """
        run_ids.claim(self.client, self.config, run_id)

    def lease(self, *, lane: int, run_id: str) -> Lease:
        """Make the lease of a run on a lane, without acquiring it."""
        return Lease(self.client, self.config.app, lane, run_id)

    def last_run_ends(self) -> dict[int, End]:
        """Read how the last run of each lane ended."""
        return run_ends.read(self.client, self.config.app)

    def note_end(self, end: End, *, lane: int) -> None:
        """Store the end of a lane's run, or that it has begun."""
        run_ends.write(self.client, self.config.app, lane, end)

    def write_outages(
        self, run_id: str, found: Sequence[Outage], set_aside: Sequence[SetAside] = (), *, lane: int
    ) -> None:
        """Store what messages wait for of the run that holds a lane; see `outages.write`."""
        outages.write(self.client, self.config.app, lane, run_id, found, set_aside)

    def turn(self, run_id: str, number: int) -> Turn:
        """Name a turn of a topology's run on Spark."""
        return Turn(self.client, self.config, run_id, number)

    def topology_state(self, topology: str) -> TopologyState:
        """Name the state of a topology's bolts."""
        return TopologyState(self.client, self.config.app, topology)

    def payloads(self, run_id: str) -> Payloads:
        """Access the messages of one run that are kept for replay."""
        return Payloads(self.client, self.config.app, run_id)

    def completed_offsets(self, spout_id: int) -> dict[str, int]:
        """Read the completed offsets of a stream; see `Acker.completed_offsets`."""
        return completed_offsets.read(self.client, self.config.app, spout_id)

    def write_completed_offsets(self, offsets: Mapping[str, int], gone: Sequence[str] = (), *, spout_id: int) -> None:
        """Write completed offsets that changed, and remove partitions that are `gone`."""
        completed_offsets.write(self.client, self.config.app, spout_id, offsets, gone)

    def output_written(self, run_id: str, spout_id: int) -> int:
        """Note that a run has written its whole output; see `whole_letters.output_written`."""
        return whole_letters.output_written(self.client, self.config, run_id, spout_id)

    def selected_letters(self, spout_id: int, wanted: DeadLetterFilter) -> SelectedLetters:
        """Select dead letters whose messages a run processes again."""
        return SelectedLetters(self.client, self.config.app, spout_id, wanted)

    def snapshot_number(self, query: str) -> int | None:
        """Read the number of the newest snapshot of a stream's query; None: there is none, or it isn't known."""
        return snapshot_numbers.read(self.client, self.config.app, query)

    def write_snapshot_number(self, query: str, number: int) -> None:
        """Store the number of the newest snapshot of a stream's query; below 0: it has none."""
        snapshot_numbers.write(self.client, self.config.app, query, number)

    def stream_status(self, spout_id: int, handler: str) -> str | None:
        """Read the status that a stream's handler has stored; None: it has stored none yet."""
        return stream_status.read(self.client, self.config.app, spout_id, handler)

    def write_stream_status(self, spout_id: int, handler: str, text: str) -> None:
        """Store the status of a stream, in place of the last one."""
        stream_status.write(self.client, self.config.app, spout_id, handler, text)
