"""Components in other languages are refused, with the way to port them."""

import pytest

from acker_redis.errors import InvalidTopologyError
from acker_redis.storm import JavaBolt, JavaSpout, ShellBolt, ShellSpout


@pytest.mark.parametrize("foreign", [JavaBolt, JavaSpout, ShellBolt, ShellSpout])
def test_foreign_component_is_refused(foreign: type) -> None:
    with pytest.raises(InvalidTopologyError, match=r"can't run here\. .*(Python|service)"):
        foreign.spec(name="x", full_class_name="com.example.X")  # type: ignore[attr-defined]
    with pytest.raises(InvalidTopologyError):
        foreign("python", "bolt.py")
