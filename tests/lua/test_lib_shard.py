"""lua/lib/shard.lua: what every script of a shard does first."""

from typing import Any

import pytest

from acker_redis.errors import LedgerLostError
from tests.support.seeding import DIGEST, IDEMPOTENCY_KEY, TICK, pack_pairs, pack_settles, pack_updates

CALLS: dict[str, tuple[Any, ...]] = {
    "init": (IDEMPOTENCY_KEY, DIGEST, 7, 0, 0, pack_pairs((1, 5))),
    "ack": (IDEMPOTENCY_KEY, DIGEST, 0, pack_pairs((1, 5))),
    "fail": (IDEMPOTENCY_KEY, DIGEST, 0, "", 0, pack_updates(1)),
    "reset_timeout": (pack_updates(1),),
    "settle": (IDEMPOTENCY_KEY, DIGEST, 7, 0, pack_settles(1)),
    "rotate": (1,),
    "expire": (500,),
    "sweep": (500,),
    "confirm": ("1-1",),
    "name_component": (3, "split"),
}


@pytest.mark.parametrize("opened", [True, False], ids=["another generation", "no generation"])
@pytest.mark.parametrize("name", CALLS)
def test_call_for_another_generation_fails_and_changes_nothing(lab, name: str, opened: bool) -> None:
    shard = lab(opened=opened, due_in_ms=0)
    if opened:
        shard.put(1, 5, tick=TICK - 3)
    shard.raw.xadd(shard.keys["acked"][0], {"spout_id": 7, "blocks": b""}, id="1-1")
    before = shard.state()
    with pytest.raises(LedgerLostError, match="reopen"):
        shard.run(name, *CALLS[name], generation="generation-2")
    assert shard.state() == before
