"""A module that can't be imported."""

NOTHING = 1 // 0
