"""lua/scripts/name_component.lua: a shard learns the name of a component number."""

from dataclasses import replace


def test_component_name_is_stored_in_meta_only(lab) -> None:
    shard = lab()
    shard.put(1, 5)
    before = shard.state()
    assert shard.run("name_component", 3, "split") == [1]
    assert shard.state() == replace(before, meta={**before.meta, "component:3": "split"})
    assert shard.run("name_component", 3, "split") == [0]
    assert shard.state() == replace(before, meta={**before.meta, "component:3": "split"})
