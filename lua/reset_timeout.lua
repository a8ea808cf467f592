#!lua flags=allow-oom
--[[
reset_timeout: give each root a whole message timeout again by moving it to the nursery.
Storm: Acker.execute, stream __ack_reset_timeout. Divergence: an unknown root is left unknown, and counted as late; so is a
closed one. Needs no fence: a repeat only moves the root again. A root older than max_age_ms is not moved.

KEYS
  ledger  HASH   acker:{app:shard}:ledger
  meta    HASH   acker:{app:shard}:meta
  stats   HASH   acker:{app:shard}:stats
  bucket  ZSET*  acker:{app:shard}:bucket:<slot>
ARGV
  generation  marker the client read when it opened the shard
  roots       root 8 bytes x n, n <= 1000, distinct
Returns
  applied     roots that are in the nursery now
Errors
  ACKERLOST
]]
--- @include "lib/bytes"
--- @include "lib/record"
--- @include "lib/shard"
local ledger, meta, stats = KEYS[1], KEYS[2], KEYS[3]
local generation, roots = ARGV[1], ARGV[2]

local shard = open_shard(meta, generation)
if not shard then return lost() end
local bucket = 4

local n = #roots / 8
local list = {}
for i = 1, n do list[i] = string.sub(roots, i * 8 - 7, i * 8) end
local records = redis.call('HMGET', ledger, unpack(list))

local new_stamp = pack_bytes('>I2', shard.stamp)
local sets, cohort, applied, late = {}, {}, 0, 0
for i = 1, n do
  local root, record = list[i], records[i]
  if not record or string.byte(record, 10) == CLOSED then
    late = late + 1
  else
    local record_stamp, _, start = unpack_bytes('>I2I4I6', record, 11)
    if record_stamp == shard.stamp then
      applied = applied + 1
    elseif shard.max_age_ms == 0 or shard.now - start < shard.max_age_ms then
      applied = applied + 1
      cohort[#cohort + 1] = root
      sets[#sets + 1] = root
      sets[#sets + 1] = string.sub(record, 1, 10) .. new_stamp .. string.sub(record, 13)
    end
  end
end

if #sets > 0 then
  redis.call('HSET', ledger, unpack(sets))
  redis.call('ZADD', KEYS[bucket + shard.nursery], shard.now, table.concat(cohort))
end
if late > 0 then redis.call('HINCRBY', stats, 'late_updates', late) end
return {applied}
