#!lua flags=allow-oom
--[[
settle: init roots whose work is already known, and settle those that are done: what init and ack would do, in one call.
Storm has no such call. Its spout inits each tuple before the bolts see it. A driver of Spark may learn the ids of its messages
only from the job that has processed them. The roots get the age that the driver measured, so their start is the time before
the job. All blocks must be new to the ledger: if one exists, the call changes nothing, and the client uses init and ack.
The limit of pending roots isn't checked, because the work is done, and a root that stays open fails next.

KEYS
  ledger  HASH     acker:{app:shard}:ledger
  meta    HASH     acker:{app:shard}:meta
  stats   HASH     acker:{app:shard}:stats
  latency HASH     acker:{app:shard}:latency
  bucket  ZSET*    acker:{app:shard}:bucket:<slot>
  dedup   SET*     acker:{app:shard}:dedup:<slot>
  acked   STREAM*  acker:{app:shard}:acked:<lane>
ARGV
  generation  marker that the client read when it opened the shard
  idempotency_key  name of this batch. A batch whose idempotency key was seen before changes nothing
  digest      hash of the batch's content, 8 bytes
  spout_id    owner of all roots of this call, 0 <= spout_id < 2^32
  age_ms      time since the work on the roots began, >= 0
  updates     (block number 8 bytes, mask 4 bytes, mask of the slots that stay open 4 bytes, values 8 bytes x open slots) x n, blocks distinct, n <= 500
Returns
  status      APPLIED 0, SEEN 1, REUSED 2, TOUCHED 3: a block exists already. Nothing was changed
  applied     number of roots that took this init
Errors
  ACKERLOST
]]
--- @include "lib/shard"
--- @include "lib/dedup"
--- @include "lib/block"
--- @include "lib/outcomes"
local ledger, meta, stats, latency = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local generation, idempotency_key, digest, spout_id, age_ms, updates = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local TOUCHED = 3

local shard = open_shard(meta, generation)
if not shard then return lost() end
local bucket, dedup = 5, 5 + shard.slots
local acked = dedup + shard.slots

local status = dedup_status(dedup, shard.slots, idempotency_key, digest)
if status ~= APPLIED then
  redis.call('HINCRBY', stats, 'deduplicated', 1)
  return {status, 0}
end

spout_id = tonumber(spout_id)
local stamp, now = shard.stamp, shard.now
local start = math.max(0, now - tonumber(age_ms))
local age = age_between(start, now)
local cohort, sets, acked_rows, acked_count, applied = {}, {}, {}, 0, 0

-- Most blocks of a call have the same mask, and all of their roots are done.
local counts, outcomes = {}, {}
local function size_of(mask)
  counts[mask] = counts[mask] or count_of(mask)
  return counts[mask]
end

local function settle_acked(number, mask)
  outcomes[mask] = outcomes[mask] or pack_bytes('>i4I4B', mask, age, 0)
  acked_rows[#acked_rows + 1] = number .. outcomes[mask]
  acked_count = acked_count + size_of(mask)
end

local function put_open(number, mask, open, values)
  local flags, block = SLOT_FLAGS[mask], nil
  if flags then
    block = values .. pack_bytes('>BBI2I4I6', 0, flags + OWNED, stamp, spout_id, start)
  else
    block = pack_head(stamp, spout_id, start, mask, mask, 0, without(mask, open))
      .. spread(values, open, mask, 8) .. sub(ZEROS, 1, size_of(mask))
  end
  cohort[#cohort + 1] = number
  sets[#sets + 1], sets[#sets + 2] = number, block
end

local GROUP = 50
local numbers, masks, opens, values = {}, {}, {}, {}
local at, size = 1, #updates
while at <= size do
  local count = 0
  while count < GROUP and at <= size do
    count = count + 1
    numbers[count], masks[count], opens[count], at = unpack_bytes('>c8i4i4', updates, at)
    if opens[count] ~= 0 then
      local first = at
      at = first + 8 * size_of(opens[count])
      values[count] = sub(updates, first, at - 1)
    end
  end
  local blocks = redis.call('HMGET', ledger, unpack(numbers, 1, count))
  for i = 1, count do
    if blocks[i] then return {TOUCHED, 0} end
    local number, mask, open = numbers[i], masks[i], opens[i]
    applied = applied + size_of(mask)
    if open ~= mask then settle_acked(number, without(mask, open)) end
    if open ~= 0 then put_open(number, mask, open, values[i]) end
  end
end

redis.call('SADD', KEYS[dedup + shard.nursery], idempotency_key, idempotency_key .. digest)
for first = 1, #sets, 2 * GROUP do
  redis.call('HSET', ledger, unpack(sets, first, math.min(first + 2 * GROUP - 1, #sets)))
end
if #cohort > 0 then redis.call('ZADD', KEYS[bucket + shard.nursery], now, concat(cohort)) end
redis.call('HINCRBY', stats, 'inits', applied)
if acked_count > 0 then
  write_acked(acked, shard.lanes, {[spout_id] = acked_rows})
  write_ages(latency, 'acked', {[age] = acked_count})
  redis.call('HINCRBY', stats, 'acks', acked_count)
  redis.call('HINCRBY', stats, 'acked', acked_count)
end
return {APPLIED, applied}
