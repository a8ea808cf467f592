"""A topology that is killed in the middle, and started again over the same app until its messages are done."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from acker_redis import Acker
from tests.chaos.test_random_kills import SEED
from tests.support.jobs.topology_job import MESSAGES
from tests.support.leaks import assert_no_leaks, run_out

pytestmark = pytest.mark.chaos

MOST_RUNS = 60


def test_no_message_is_lost_and_none_acked_before_all_of_it_is_written(
    real_url: str, raw: Any, connect: Any, tmp_path: Path
) -> None:
    deaths = 0
    for number in range(MOST_RUNS):
        dies = "0.02" if number < 8 else "0"
        done = subprocess.run(
            [sys.executable, "-m", "tests.support.jobs.topology_job", real_url, str(tmp_path), dies],
            env={"PYTHONHASHSEED": str(SEED + number), "PYTHONPATH": ":".join(sys.path)},
            check=False,
        )
        acks = (tmp_path / "acks").read_text().split() if (tmp_path / "acks").exists() else []
        parts = set((tmp_path / "parts").read_text().split()) if (tmp_path / "parts").exists() else set()
        lost = [tup_id for tup_id in acks if not {f"{tup_id}.{part}" for part in range(3)} <= parts]
        assert not lost, f"acked, and not written: {lost}"
        assert len(set(acks)) == len(acks), "acked twice"
        if done.returncode == 0:
            break
        assert done.returncode == 9
        deaths += 1
    assert sorted(acks) == sorted(str(number) for number in range(MESSAGES))
    assert deaths > 0
    acker: Acker = connect(message_timeout_secs=60)
    run_out(acker)
    assert_no_leaks(raw, "test")
