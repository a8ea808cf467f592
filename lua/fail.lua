#!lua flags=allow-oom
--[[
fail: mark each root's tree failed; one that has its owner settles at once, one that has not waits for its init.
Storm: Acker.execute, stream __ack_fail. Divergences: failed beats zero, so the outcome does not depend on arrival order;
a root that settles here is closed and its record stays in the nursery, so that what comes later of it is known to be late.

KEYS
  ledger  HASH     acker:{app:shard}:ledger
  meta    HASH     acker:{app:shard}:meta
  stats   HASH     acker:{app:shard}:stats
  bucket  ZSET*    acker:{app:shard}:bucket:<slot>
  fence   SET*     acker:{app:shard}:fence:<slot>
  failed  STREAM*  acker:{app:shard}:failed:<lane>
ARGV
  generation  marker the client read when it opened the shard
  token       names this batch; a batch whose token was seen changes nothing
  digest      8 bytes, hash of the batch's content
  stage       number of the stage that fails, 0 for none: then the root keeps the stage it had
  detail      why, for people; empty for none. Not kept for a root that still waits for its init
  roots       root 8 bytes x n, n <= 500, distinct
Returns
  status      APPLIED 0, SEEN 1, REUSED 2
  applied     roots whose tree took this fail
Errors
  ACKERLOST
]]
--- @include "lib/bytes"
--- @include "lib/record"
--- @include "lib/shard"
--- @include "lib/fence"
--- @include "lib/outcomes"
local ledger, meta, stats = KEYS[1], KEYS[2], KEYS[3]
local generation, token, digest, stage, detail, roots = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]

local shard = open_shard(meta, generation)
if not shard then return lost() end
local bucket, fence = 4, 4 + shard.slots
local failed = fence + shard.slots

local status = fence_status(fence, shard.slots, token, digest)
if status ~= APPLIED then
  redis.call('HINCRBY', stats, 'fenced', 1)
  return {status, 0}
end

local n = #roots / 8
local list = {}
for i = 1, n do list[i] = string.sub(roots, i * 8 - 7, i * 8) end
local records = redis.call('HMGET', ledger, unpack(list))

stage = tonumber(stage)
local now, stamp = shard.now, shard.stamp
local sets, settled, cohort, late = {}, {}, {}, 0

for i = 1, n do
  local root, record = list[i], records[i]
  local hi, lo, last_stage, flags, record_stamp, task, start = 0, 0, stage, WAITING, nil, 0, now
  if record then
    local old_stage
    hi, lo, old_stage, flags, record_stamp, task, start = unpack_bytes('>i4i4BBI2I4I6', record)
    if stage == 0 then last_stage = old_stage end
  end
  if flags == CLOSED then
    late = late + 1
  else
    local closes = flags == OWNED
    local young = shard.max_age_ms == 0 or now - start < shard.max_age_ms
    if record_stamp ~= stamp and (young or closes or not record) then
      record_stamp = stamp
      cohort[#cohort + 1] = root
    end
    if closes then
      settled[#settled + 1] = {root = root, task = task, age = age_between(start, now), stage = last_stage}
    end
    flags = closes and CLOSED or FAILED
    sets[#sets + 1] = root
    sets[#sets + 1] = pack_bytes('>i4i4BBI2I4I6', hi, lo, last_stage, flags, record_stamp, task, start)
  end
end

redis.call('SADD', KEYS[fence + shard.nursery], token, token .. digest)
if #sets > 0 then redis.call('HSET', ledger, unpack(sets)) end
if #cohort > 0 then redis.call('ZADD', KEYS[bucket + shard.nursery], now, table.concat(cohort)) end
local names = {}
for _, row in ipairs(settled) do
  write_failed(KEYS[failed + row.task % shard.lanes], row.root, row.task, 'failed', detail, row.age,
    stage_name(meta, names, row.stage))
end
if #settled > 0 then
  redis.call('HINCRBY', stats, 'failed', #settled)
  redis.call('HINCRBY', stats, 'closed', #settled)
end
if late > 0 then redis.call('HINCRBY', stats, 'late_updates', late) end
redis.call('HINCRBY', stats, 'fails', n - late)
return {APPLIED, n - late}
