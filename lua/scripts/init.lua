#!lua
--[[
init: set the owner (spout_id) of each root and its first ack val. A root that is already zero or failed settles.
Storm: Acker.execute, stream __ack_init. An init of a root that already has an owner is ignored and counted. A root that
fails here is closed. Its block moves to the nursery if no other root of it is pending, as in fail.lua. A block that gets
further roots moves too.
If the app's pending roots are limited, a shard that has its part of them refuses the whole call. A call that begins below
the limit is applied whole.

KEYS
  ledger  HASH     acker:{app:shard}:ledger
  meta    HASH     acker:{app:shard}:meta
  stats   HASH     acker:{app:shard}:stats
  latency HASH     acker:{app:shard}:latency
  bucket  ZSET*    acker:{app:shard}:bucket:<slot>
  dedup   SET*     acker:{app:shard}:dedup:<slot>
  acked   STREAM*  acker:{app:shard}:acked:<lane>
  failed  STREAM*  acker:{app:shard}:failed:<lane>
  scratch STRING*  acker:{app:shard}:scratch:<side>
ARGV
  generation  marker that the client read when it opened the shard
  idempotency_key  name of this batch. A batch whose idempotency key was seen before changes nothing
  digest      hash of the batch's content, 8 bytes
  spout_id    owner of all roots of this call, 0 <= spout_id < 2^32
  repeats     number of repeated roots that the client dropped from its batch; counted as duplicate_inits
  updates     (block number 8 bytes, mask 4 bytes, values 8 bytes x slots of the mask) x n, blocks distinct, n <= 500
Returns
  status      APPLIED 0, SEEN 1, REUSED 2, OTHER_SPOUT_ID 3: a block has roots of another spout_id. Nothing was changed
  applied     number of roots that took this init
Errors
  ACKERLOST
  ACKERFULL
]]
--- @include "lib/shard"
--- @include "lib/dedup"
--- @include "lib/fold"
--- @include "lib/outcomes"
local ledger, meta, stats, latency = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local generation, idempotency_key, digest, spout_id, repeats, updates = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local OTHER_SPOUT_ID = 3

local shard = open_shard(meta, generation)
if not shard then return lost() end
local bucket, dedup = 5, 5 + shard.slots
local acked, failed = dedup + shard.slots, dedup + shard.slots + shard.lanes
local scratch = failed + shard.lanes

local status = dedup_status(dedup, shard.slots, idempotency_key, digest)
if status ~= APPLIED then
  redis.call('HINCRBY', stats, 'deduplicated', 1)
  return {status, 0}
end

if shard.max_pending then
  local counted = redis.call('HMGET', stats, 'inits', 'acked', 'failed', 'timed_out')
  local pending = (counted[1] or 0) - (counted[2] or 0) - (counted[3] or 0) - (counted[4] or 0)
  if pending >= shard.max_pending then
    return redis.error_reply('ACKERFULL the shard has its part of the pending roots that its limit allows')
  end
end

spout_id = tonumber(spout_id)
local now, stamp = shard.now, shard.stamp
local cohort, acked_rows, failed_rows, acked_count, duplicates, adopted, applied = {}, {}, {}, 0, 0, 0, 0

local ages, failed_ages = {}, {}
local function settle_acked(number, mask, age, last_component)
  acked_rows[#acked_rows + 1] = number .. pack_bytes('>i4I4B', mask, age, last_component)
  ages[age] = (ages[age] or 0) + count_of(mask)
end

-- This loop updates alone blocks and gathers shared ones for later. It works in groups, because small commands cost less per
-- root than large ones. Everything is read and computed before the first write to a lasting key.
local GROUP = 50
local numbers, masks, values, sets, gone, folds = {}, {}, {}, {}, {}, {}
local set_count, at, size = 0, 1, #updates

local function set(number, block)
  sets[set_count + 1], sets[set_count + 2] = number, block
  set_count = set_count + 2
end

local new_heads, new_tails, no_components = {}, {}, {}

local function put_new_alone(number, flags, value)
  applied = applied + 1
  if value == ZERO_VALUE then
    acked_count = acked_count + 1
    settle_acked(number, BIT[flags / 4], 0, 0)
    return
  end
  new_tails[flags] = new_tails[flags] or pack_bytes('>BBI2I4I6', 0, flags + OWNED, stamp, spout_id, now)
  cohort[#cohort + 1] = number
  sets[set_count + 1], sets[set_count + 2] = number, value .. new_tails[flags]
  set_count = set_count + 2
end

local function put_new(number, mask, values)
  local count = count_of(mask)
  applied = applied + count
  local done = zeros_of(values, mask)
  if done ~= 0 then
    settle_acked(number, done, 0, 0)
    acked_count = acked_count + count_of(done)
    if done == mask then return end
  end
  if not new_heads[mask] then
    new_heads[mask], no_components[mask] = pack_head(stamp, spout_id, now, mask, mask, 0, 0), sub(ZEROS, 1, count)
  end
  local head = done == 0 and new_heads[mask] or pack_head(stamp, spout_id, now, mask, mask, 0, done)
  cohort[#cohort + 1] = number
  set(number, head .. values .. no_components[mask])
end

-- An alone block whose root waits for this init.
local function put_owner(number, block, flags, value)
  local hi, lo, last_component, state, block_stamp, _, start = unpack_bytes('>i4i4BBI2I4I6', block)
  local value_hi, value_lo = unpack_bytes('>i4i4', value)
  local age = age_between(start, now)
  state = state - flags
  hi, lo = bxor(hi, value_hi), bxor(lo, value_lo)
  applied = applied + 1
  adopted = adopted + 1
  if state == WAITING and hi == 0 and lo == 0 then
    gone[#gone + 1] = number
    acked_count = acked_count + 1
    settle_acked(number, BIT[flags / 4], age, last_component)
    return
  end
  local closes = state == FAILED
  if block_stamp ~= stamp and (closes or shard.last_update and is_young(shard, start)) then
    block_stamp = stamp
    cohort[#cohort + 1] = number
  end
  if closes then failed_rows[#failed_rows + 1] = {root_at(number, flags / 4), age, last_component} end
  set(number, pack_bytes('>i4i4BBI2I4I6', hi, lo, last_component, flags + (closes and CLOSED or OWNED), block_stamp, spout_id, start))
end

while at <= size do
  local count = 0
  while count < GROUP and at <= size do
    count = count + 1
    numbers[count], masks[count], values[count], at = unpack_bytes('>c8i4c8', updates, at)
    if not SLOT_FLAGS[masks[count]] then
      local first = at - 8
      at = first + 8 * #slots_of(masks[count])
      values[count] = sub(updates, first, at - 1)
    end
  end
  local blocks = redis.call('HMGET', ledger, unpack(numbers, 1, count))
  for i = 1, count do
    local number, block, mask, value = numbers[i], blocks[i], masks[i], values[i]
    local flags = SLOT_FLAGS[mask]
    local state = flags and block and #block == ALONE_BYTES and byte(block, 10) - flags
    if not block and flags then
      put_new_alone(number, flags, value)
    elseif not block then
      put_new(number, mask, value)
    elseif state == OWNED or state == CLOSED then
      duplicates = duplicates + 1
    elseif state == WAITING or state == FAILED then
      put_owner(number, block, flags, value)
    else
      block = as_shared(block)
      local head = head_of(block)
      local open = without(mask, head.owned)
      duplicates = duplicates + count_of(mask) - count_of(open)
      if open ~= 0 then
        if head.owned ~= 0 and head.spout_id ~= spout_id then return {OTHER_SPOUT_ID, 0} end
        applied = applied + count_of(open)
        adopted = adopted + count_of(band(open, head.present))
        fold_in(folds, number, block, head, open, picked(value, mask, open, 8))
      end
    end
  end
end

local problem = fold_all(folds, KEYS[scratch], KEYS[scratch + 1])
if problem then return problem end
for _, fold in ipairs(folds) do
  local head, present, number, mask = fold.head, fold.present, fold.number, fold.mask
  local closes = band(mask, head.failed)
  local done = zeros_among(fold.values, present, without(mask, closes))
  local age = age_between(head.start, now)
  local settled = head.settled + done
  if done ~= 0 then
    for last_component, alike in pairs(by_component(fold.components, present, done)) do
      settle_acked(number, alike, age, last_component)
    end
    acked_count = acked_count + count_of(done)
  end
  local places = places_of(present)
  for _, slot in ipairs(slots_of(closes)) do
    failed_rows[#failed_rows + 1] = {root_at(number, slot), age, byte(fold.components, places[slot])}
  end
  if settled == present then
    gone[#gone + 1] = number
  else
    local owned = bor(head.owned, mask)
    local hangs = without(owned, bor(settled, bor(closes, head.over))) ~= 0 -- a root that is still pending keeps its timeout
    local moved = head.stamp ~= stamp
      and (fold.grown or closes ~= 0 and not hangs or shard.last_update and is_young(shard, head.start))
    if moved then cohort[#cohort + 1] = number end
    set(number, pack_head(moved and stamp or head.stamp, spout_id, head.start, present, owned, head.failed, settled)
      .. fold.values .. fold.components)
  end
end

redis.call('SADD', KEYS[dedup + shard.nursery], idempotency_key, idempotency_key .. digest)
for first = 1, set_count, 2 * GROUP do
  redis.call('HSET', ledger, unpack(sets, first, math.min(first + 2 * GROUP - 1, set_count)))
end
for first = 1, #gone, GROUP do
  redis.call('HDEL', ledger, unpack(gone, first, math.min(first + GROUP - 1, #gone)))
end
if #cohort > 0 then redis.call('ZADD', KEYS[bucket + shard.nursery], now, concat(cohort)) end
if acked_count > 0 then
  write_acked(acked, shard.lanes, {[spout_id] = acked_rows})
  write_ages(latency, 'acked', ages)
  redis.call('HINCRBY', stats, 'acked', acked_count)
end
if #failed_rows > 0 then
  local names, components = {}, {}
  for _, row in ipairs(failed_rows) do
    write_failed(KEYS[failed + spout_id % shard.lanes], row[1], spout_id, 'failed', '', row[2], component_name(meta, names, row[3]))
    failed_ages[row[2]] = (failed_ages[row[2]] or 0) + 1
    components[row[3]] = (components[row[3]] or 0) + 1
  end
  write_ages(latency, 'failed', failed_ages)
  write_components(stats, 'failed', components)
  redis.call('HINCRBY', stats, 'failed', #failed_rows)
  redis.call('HINCRBY', stats, 'closed', #failed_rows)
end
if adopted > 0 then redis.call('HINCRBY', stats, 'unowned', -adopted) end
redis.call('HINCRBY', stats, 'inits', applied)
if duplicates + repeats > 0 then redis.call('HINCRBY', stats, 'duplicate_inits', duplicates + repeats) end
return {APPLIED, applied}
