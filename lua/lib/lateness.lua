-- lateness: whether nobody rotates. The same rule, with the same numbers, as `Stats.rotation_is_late` in Python; a test compares them.
local LATE_TICKS, LATE_MS = 2, 2000

-- Of a shard that ticked so long ago.
local function is_rotation_late(age_ms, tick_ms)
  return age_ms > math.max(LATE_TICKS * tick_ms, tick_ms + LATE_MS)
end
