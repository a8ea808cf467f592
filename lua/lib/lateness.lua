-- lateness: checks whether a rotator is missing. Rule and numbers are those of `Stats.rotation_is_late` in Python; a test
-- compares them.
local LATE_TICKS, LATE_MS = 2, 2000

-- `age_ms`: time since the shard's last tick.
local function is_rotation_late(age_ms, tick_ms)
  return age_ms > math.max(LATE_TICKS * tick_ms, tick_ms + LATE_MS)
end
