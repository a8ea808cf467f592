#!lua flags=allow-oom
--[[
ack: fold one ack value into each root's tree and settle the trees that reach zero.
Storm: Acker.execute, stream __ack_ack. An ack may come before its init: the record then waits for its owner.

KEYS
  ledger  HASH     acker:{app:shard}:ledger
  meta    HASH     acker:{app:shard}:meta
  stats   HASH     acker:{app:shard}:stats
  bucket  ZSET*    acker:{app:shard}:bucket:<slot>
  fence   SET*     acker:{app:shard}:fence:<slot>
  acked   STREAM*  acker:{app:shard}:acked:<lane>
ARGV
  generation  marker the client read when it opened the shard
  token       names this batch; a batch whose token was seen changes nothing
  digest      8 bytes, hash of the batch's content
  stage       number of the stage that acks, 0 for none: then the root keeps the stage it had
  updates     (root 8 bytes, value 8 bytes) x n, n <= 1000, roots distinct
Returns
  status      APPLIED 0, SEEN 1, REUSED 2
  applied     roots whose tree took this ack
Errors
  ACKERLOST
]]
--- @include "lib/bytes"
--- @include "lib/shard"
--- @include "lib/fence"
--- @include "lib/outcomes"
local ledger, meta, stats = KEYS[1], KEYS[2], KEYS[3]
local generation, token, digest, stage, updates = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]

local shard = open_shard(meta, generation)
if not shard then return lost() end
local bucket, fence = 4, 4 + shard.slots
local acked = fence + shard.slots

local status = fence_status(fence, shard.slots, token, digest)
if status ~= APPLIED then
  redis.call('HINCRBY', stats, 'fenced', 1)
  return {status, 0}
end

local n = #updates / 16
local sub = string.sub
local roots = {}
for i = 1, n do roots[i] = sub(updates, i * 16 - 15, i * 16 - 8) end
local records = redis.call('HMGET', ledger, unpack(roots))

stage = tonumber(stage)
local now, stamp, refresh = shard.now, shard.stamp, shard.last_update
local new_tail = pack_bytes('>BBI2I4I6', stage, 0, stamp, 0, now)
local sets, settled, cohort, by_task = {}, {}, {}, {}
local set_count, settled_count = 0, 0

for i = 1, n do
  local root, record = roots[i], records[i]
  local updated
  if not record then
    updated = sub(updates, i * 16 - 7, i * 16) .. new_tail
    cohort[#cohort + 1] = root
  else
    local hi, lo = unpack_bytes('>i4i4', updates, i * 16 - 7)
    local old_hi, old_lo, last_stage, flags, record_stamp, task, start = unpack_bytes('>i4i4BBI2I4I6', record)
    hi, lo = bxor(hi, old_hi), bxor(lo, old_lo)
    if stage > 0 then last_stage = stage end
    if hi == 0 and lo == 0 and flags == 1 then
      local rows = by_task[task]
      if not rows then rows = {}; by_task[task] = rows end
      rows[#rows + 1] = root .. pack_bytes('>I4B', age_between(start, now), last_stage)
      settled_count = settled_count + 1
      settled[settled_count] = root
    else
      if refresh and record_stamp ~= stamp and (shard.max_age_ms == 0 or now - start < shard.max_age_ms) then
        record_stamp = stamp
        cohort[#cohort + 1] = root
      end
      updated = pack_bytes('>i4i4BBI2I4I6', hi, lo, last_stage, flags, record_stamp, task, start)
    end
  end
  if updated then
    sets[set_count + 1], sets[set_count + 2] = root, updated
    set_count = set_count + 2
  end
end

redis.call('SADD', KEYS[fence + shard.nursery], token, token .. digest)
if set_count > 0 then redis.call('HSET', ledger, unpack(sets)) end
if settled_count > 0 then
  redis.call('HDEL', ledger, unpack(settled))
  write_acked(acked, shard.lanes, by_task)
  redis.call('HINCRBY', stats, 'acked', settled_count)
end
if #cohort > 0 then redis.call('ZADD', KEYS[bucket + shard.nursery], now, table.concat(cohort)) end
redis.call('HINCRBY', stats, 'acks', n)
return {APPLIED, n}
