"""lua/scripts/name_stage.lua: a shard learns the name of a stage number."""

from dataclasses import replace


def test_the_name_stands_in_meta_and_nothing_else_changes(lab) -> None:
    shard = lab()
    shard.put(1, 5)
    before = shard.state()
    assert shard.run("name_stage", 3, "split") == [1]
    assert shard.state() == replace(before, meta={**before.meta, "stage:3": "split"})
    assert shard.run("name_stage", 3, "split") == [0]
    assert shard.state() == replace(before, meta={**before.meta, "stage:3": "split"})
