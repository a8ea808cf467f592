"""The page on tracked DataFrames runs from its first block to its last, as one program."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers import VALKEY
from tests.spark.test_readme import ROOT, run_program

pytestmark = pytest.mark.spark


def test_every_block_runs(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "spark.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    with VALKEY.server() as server:
        rotator = subprocess.Popen(
            [sys.executable, "-m", "acker_redis", "rotator", "--redis", server.url, "--all"], stderr=subprocess.DEVNULL
        )
        try:
            run_program("\n".join(blocks), server.url, tmp_path)
        finally:
            rotator.terminate()
            rotator.wait(timeout=30)
