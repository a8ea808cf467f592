"""Components in other languages are refused, with the way to port them."""

import pytest

from acker_redis.errors import InvalidTopologyError
from acker_redis.storm import FeederSpout, JavaBolt, JavaSpout, ShellBolt, ShellSpout, Topology, TopologyBuilder


@pytest.mark.parametrize("foreign", [JavaBolt, JavaSpout, ShellBolt, ShellSpout])
def test_foreign_component_is_refused(foreign: type) -> None:
    with pytest.raises(InvalidTopologyError, match=r"can't run here\. .*(Python|service)"):
        foreign.spec(name="x", full_class_name="com.example.X")  # type: ignore[attr-defined]
    with pytest.raises(InvalidTopologyError):
        foreign("python", "bolt.py")


@pytest.mark.parametrize("foreign", [JavaBolt, JavaSpout, ShellBolt, ShellSpout])
def test_class_of_a_foreign_component_is_refused_with_the_way_to_port_it(foreign: type) -> None:
    own = type("Own", (foreign,), {})
    builder = TopologyBuilder()
    for component in (foreign, own):
        for call in (builder.set_bolt, builder.set_spout):
            with pytest.raises(InvalidTopologyError, match=r"can't run here\. .*(Python|service)"):
                call("x", component)
        with pytest.raises(InvalidTopologyError, match=r"can't run here\. .*(Python|service)"):
            type("Foreign", (Topology,), {"lines": FeederSpout(["v"]).spec(), "x": component})
