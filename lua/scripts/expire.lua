#!lua flags=allow-oom
--[[
expire: drain a bounded part of death row. A block that did not move since it was put there expires. Its owned roots time out,
each as one entry of the fail stream. Roots without owner are removed silently and counted. Closed roots are removed silently.
Storm: the expiry callback of RotatingMap. Divergence: Storm's acker has no callback and leaves timeouts to the spout.

KEYS
  ledger  HASH     acker:{app:shard}:ledger
  meta    HASH     acker:{app:shard}:meta
  stats   HASH     acker:{app:shard}:stats
  latency HASH     acker:{app:shard}:latency
  bucket  ZSET*    acker:{app:shard}:bucket:<slot>
  failed  STREAM*  acker:{app:shard}:failed:<lane>
ARGV
  generation  marker that the client read when it opened the shard
  limit       maximum number of blocks to read and of roots to time out, give or take one block; at most 1000
Returns
  timed_out   number of owned roots that expired
  orphaned    number of roots without owner that expired
  dead        number of cohorts left on death row
Errors
  ACKERLOST
]]
--- @include "lib/shard"
--- @include "lib/expiry"
local ledger, meta, stats, latency = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local generation, limit = ARGV[1], ARGV[2]

local shard = open_shard(meta, generation)
if not shard then return lost() end
local failed = 5 + shard.slots
local death_row = KEYS[5 + (shard.tick + 1) % shard.slots]
local dead_stamp = (shard.tick - shard.num_buckets) % 65536

-- Large cohorts are read one by one, small ones in growing groups, so that no call reads much more than it uses. A cohort cut
-- by the limit is written back shorter.
local GROUP = 32
local expired, drained, rest, rest_score, room = none_expired(), {}, nil, nil, tonumber(limit)

-- Process a cohort's blocks in order. Returns the number of bytes processed.
local function look_at(cohort)
  local at = 1
  while at <= #cohort and room > 0 do
    local numbers = {}
    for i = 1, math.min((#cohort - at + 1) / 8, GROUP, room) do
      numbers[i] = string.sub(cohort, at + i * 8 - 8, at + i * 8 - 1)
    end
    local blocks = redis.call('HMGET', ledger, unpack(numbers))
    for i, number in ipairs(numbers) do
      if room <= 0 then break end
      local block, timed_out = blocks[i], #expired.timed_out
      if block and stamp_of(block) == dead_stamp then take_expired(expired, number, block, shard.now) end
      room = room - math.max(1, #expired.timed_out - timed_out)
      at = at + 8
    end
  end
  return at - 1
end

local offset, step = 0, 1
while room > 0 do
  local cohorts = redis.call('ZRANGE', death_row, offset, offset + step - 1, 'WITHSCORES')
  if #cohorts == 0 then break end
  for i = 1, #cohorts, 2 do
    if room <= 0 then break end
    local cohort = cohorts[i]
    local seen = look_at(cohort)
    drained[#drained + 1] = cohort
    if seen < #cohort then rest, rest_score = string.sub(cohort, seen + 1), cohorts[i + 1] end
  end
  offset, step = offset + step, math.min(step * 2, 32)
end
if #drained == 0 then return {0, 0, 0} end

redis.call('ZREM', death_row, unpack(drained))
if rest then redis.call('ZADD', death_row, rest_score, rest) end
write_expired(failed, shard.lanes, ledger, meta, stats, latency, expired)
return {#expired.timed_out, expired.orphaned, redis.call('ZCARD', death_row)}
