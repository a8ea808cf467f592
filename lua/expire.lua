#!lua flags=allow-oom
--[[
expire: drain a bounded part of death row. A root that was not moved since it was put there times out: owned, it becomes
one entry of the fail stream; without owner, it goes silently and is counted; closed, it goes silently.
Storm: the expiry callback of RotatingMap. Divergence: Storm's acker has no callback and leaves timeouts to the spout.

KEYS
  ledger  HASH     acker:{app:shard}:ledger
  meta    HASH     acker:{app:shard}:meta
  stats   HASH     acker:{app:shard}:stats
  bucket  ZSET*    acker:{app:shard}:bucket:<slot>
  failed  STREAM*  acker:{app:shard}:failed:<lane>
ARGV
  generation  marker the client read when it opened the shard
  limit       roots to look at, at most 1000
Returns
  timed_out   owned roots that expired
  orphaned    roots without owner that expired
  dead        cohorts left on death row
Errors
  ACKERLOST
]]
--- @include "lib/bytes"
--- @include "lib/shard"
--- @include "lib/expiry"
local ledger, meta, stats = KEYS[1], KEYS[2], KEYS[3]
local generation, limit = ARGV[1], ARGV[2]

local shard = open_shard(meta, generation)
if not shard then return lost() end
local failed = 4 + shard.slots
local death_row = KEYS[4 + (shard.tick + 1) % shard.slots]
local dead_stamp = (shard.tick - shard.num_buckets) % 65536

-- Large cohorts are read one by one, small ones ever more at a time: no call reads much more than it looks at. A cohort
-- cut by the limit goes back shorter.
local roots, drained, rest, rest_score, room = {}, {}, nil, nil, tonumber(limit)
local offset, step = 0, 1
while room > 0 do
  local cohorts = redis.call('ZRANGE', death_row, offset, offset + step - 1, 'WITHSCORES')
  if #cohorts == 0 then break end
  for i = 1, #cohorts, 2 do
    if room == 0 then break end
    local cohort = cohorts[i]
    local take = math.min(#cohort / 8, room)
    for j = 1, take do roots[#roots + 1] = string.sub(cohort, j * 8 - 7, j * 8) end
    room = room - take
    drained[#drained + 1] = cohort
    if take * 8 < #cohort then rest, rest_score = string.sub(cohort, take * 8 + 1), cohorts[i + 1] end
  end
  offset, step = offset + step, math.min(step * 2, 32)
end
if #roots == 0 then return {0, 0, 0} end
local records = redis.call('HMGET', ledger, unpack(roots))

local expired = none_expired()
for i, root in ipairs(roots) do
  local record = records[i]
  if record and unpack_bytes('>I2', record, 11) == dead_stamp then take_expired(expired, root, record, shard.now) end
end

redis.call('ZREM', death_row, unpack(drained))
if rest then redis.call('ZADD', death_row, rest_score, rest) end
write_expired(failed, shard.lanes, ledger, meta, stats, expired)
return {#expired.timed_out, expired.orphaned, redis.call('ZCARD', death_row)}
