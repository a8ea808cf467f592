#!lua flags=no-writes
--[[
oldest: find the root that has gone longest without being put into the nursery. Reads only, a bounded part per call.

KEYS
  ledger  HASH   acker:{app:shard}:ledger
  meta    HASH   acker:{app:shard}:meta
  bucket  ZSET*  acker:{app:shard}:bucket:<slot>
ARGV
  generation  marker the client read when it opened the shard
  steps_back  which bucket: num_buckets for death row ... 0 for the nursery
  offset      cohort to begin with
Returns
  status   FOUND 0, MORE 1, EMPTY 2
  age_ms   since the found root's first message
  offset   cohort to go on with, after MORE
Errors
  ACKERLOST
]]
--- @include "lib/bytes"
--- @include "lib/shard"
local ledger, meta = KEYS[1], KEYS[2]
local generation, steps_back, offset = ARGV[1], ARGV[2], ARGV[3]
local FOUND, MORE, EMPTY = 0, 1, 2

local shard = open_shard(meta, generation)
if not shard then return lost() end
local tick = shard.tick - steps_back
if tick < 0 then return {EMPTY, 0, 0} end
local bucket = KEYS[3 + tick % shard.slots]

local cohorts = redis.call('ZRANGE', bucket, offset, offset + 3)
for _, cohort in ipairs(cohorts) do
  local roots = {}
  for i = 1, #cohort / 8 do roots[i] = string.sub(cohort, i * 8 - 7, i * 8) end
  local oldest
  for _, record in ipairs(redis.call('HMGET', ledger, unpack(roots))) do
    if record then
      local flags, stamp, _, start = unpack_bytes('>BI2I4I6', record, 10)
      if flags == 1 and stamp == tick % 65536 and (not oldest or start < oldest) then oldest = start end
    end
  end
  if oldest then return {FOUND, age_between(oldest, shard.now), 0} end
end
if #cohorts < 4 then return {EMPTY, 0, 0} end
return {MORE, 0, offset + 4}
