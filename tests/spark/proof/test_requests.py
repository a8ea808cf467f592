"""Meters in the requests of Spark Connect: each has a name of its own there, and is one meter again in the response."""

import pytest

pytest.importorskip("grpc", reason="Spark Connect needs pyspark[connect]")

from pyspark.sql.connect.proto import Plan

from acker_redis.spark.proof import requests

METER = "acker:orders:run:0:split|2#1"
"""Its operator has a name that ends like an occurrence."""


def united(times: int) -> Plan:
    """A frame that has a meter, united with itself."""
    plan = Plan()
    relation = plan.root
    for _ in range(times - 1):
        relation.set_op.right_input.collect_metrics.name = METER
        relation = relation.set_op.left_input
    relation.collect_metrics.name = METER
    return plan


def test_meters_of_all_requests_have_different_names() -> None:
    plans = [united(3), united(1)]
    for plan in plans:
        requests.rename(plan)
    names = [name for plan in plans for name in str(plan).split('"') if name.startswith("acker:")]
    assert len(set(names)) == 4
    assert set(requests.meters_in(plans[0].root)) == {METER}
    assert requests.by_meter({name: {"rows": 1} for name in names}) == {METER: {"rows": 1}}
    requests.rename(plans[0])  # with frames that the server sent back
    assert set(requests.meters_in(plans[0].root)) == {METER}


@pytest.mark.parametrize(
    ("every", "known"),
    [
        ([{"rows": 1, "failures": "a,b"}, {"rows": 1, "failures": "b,a"}], True),
        ([{"rows": 1}, {"rows": 2}], False),
    ],
)
def test_sums_are_unknown_if_occurrences_differ(every: list[dict[str, object]], known: bool) -> None:
    found = requests.by_meter({f"{METER}|{number}": sums for number, sums in enumerate(every)})
    assert (METER in found) is known
