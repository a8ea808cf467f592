#!lua flags=allow-oom
--[[
fail: mark each root failed. A root with an owner settles at once, a root without one waits for its init.
Storm: Acker.execute, stream __ack_fail. Divergence: failed beats zero, so the outcome does not depend on arrival order.
Divergence: a root that settles here is closed. Its block moves to the nursery, so that later updates of the root count as late
for a whole timeout. The block does not move while other roots of it are pending, which keep their timeout.

KEYS
  ledger  HASH     acker:{app:shard}:ledger
  meta    HASH     acker:{app:shard}:meta
  stats   HASH     acker:{app:shard}:stats
  latency HASH     acker:{app:shard}:latency
  bucket  ZSET*    acker:{app:shard}:bucket:<slot>
  dedup   SET*     acker:{app:shard}:dedup:<slot>
  failed  STREAM*  acker:{app:shard}:failed:<lane>
ARGV
  generation  marker that the client read when it opened the shard
  idempotency_key  name of this batch. A batch whose idempotency key was seen before changes nothing
  digest      hash of the batch's content, 8 bytes
  component   number of the component that fails. 0 for none, so that the root keeps its last component
  detail      reason for people, empty for none. Not kept for a root that still waits for its init
  released  1 if a run gives the roots back and no work on them failed, else 0. Those that settle here are counted apart
  updates     (block number 8 bytes, mask 4 bytes) x n, blocks distinct; at most 300 roots in all
Returns
  status      APPLIED 0, SEEN 1, REUSED 2
  applied     number of roots that this fail changed
Errors
  ACKERLOST
]]
--- @include "lib/block"
--- @include "lib/shard"
--- @include "lib/dedup"
--- @include "lib/outcomes"
local ledger, meta, stats, latency = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local generation, idempotency_key, digest, component, detail, released, updates = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7]

local shard = open_shard(meta, generation)
if not shard then return lost() end
local bucket, dedup = 5, 5 + shard.slots
local failed = dedup + shard.slots

local status = dedup_status(dedup, shard.slots, idempotency_key, digest)
if status ~= APPLIED then
  redis.call('HINCRBY', stats, 'deduplicated', 1)
  return {status, 0}
end

local n, at = #updates / 12, 1
local numbers, masks = {}, {}
for i = 1, n do numbers[i], masks[i], at = unpack_bytes('>c8i4', updates, at) end
local blocks = redis.call('HMGET', ledger, unpack(numbers))

component = tonumber(component)
local now, stamp = shard.now, shard.stamp
local sets, settled, cohort, applied, late, unowned = {}, {}, {}, 0, 0, 0

local function settle(number, slot, spout_id, start, last_component)
  settled[#settled + 1] = {root = root_at(number, slot), spout_id = spout_id, age = age_between(start, now), component = last_component}
end

local function moves(block_stamp, start, always)
  return block_stamp ~= stamp and (always or is_young(shard, start))
end

local function fail_alone(number, block, flags)
  local hi, lo, last_component, state, block_stamp, spout_id, start = 0, 0, component, WAITING, nil, 0, now
  if block then
    local old_component
    hi, lo, old_component, state, block_stamp, spout_id, start = unpack_bytes('>i4i4BBI2I4I6', block)
    state = state - flags
    if component == 0 then last_component = old_component end
  else
    unowned = unowned + 1
  end
  if state == CLOSED then
    late = late + 1
    return
  end
  local closes = state == OWNED
  applied = applied + 1
  if moves(block_stamp, start, closes or not block) then
    block_stamp = stamp
    cohort[#cohort + 1] = number
  end
  if closes then settle(number, flags / 4, spout_id, start, last_component) end
  sets[#sets + 1] = number
  sets[#sets + 1] = pack_bytes('>i4i4BBI2I4I6', hi, lo, last_component, flags + (closes and CLOSED or FAILED), block_stamp, spout_id, start)
end

local function fail_shared(number, block, mask)
  block = block and as_shared(block) or pack_head(stamp, 0, now, 0, 0, 0, 0)
  local head = head_of(block)
  local open = without(mask, head.over)
  applied = applied + count_of(open)
  late = late + count_of(mask) - count_of(open)
  if open == 0 then return end
  local present, closes = bor(head.present, open), band(open, head.owned)
  local components = spread(components_of(block, head), head.present, present, 1)
  local grown = present ~= head.present
  unowned = unowned + count_of(without(present, head.present))
  if component > 0 then components = marked(components, present, open, string.char(component)) end
  local places = places_of(present)
  for _, slot in ipairs(slots_of(closes)) do settle(number, slot, head.spout_id, head.start, string.byte(components, places[slot])) end
  local hangs = without(head.owned, bor(head.over, closes)) ~= 0
  local renews = grown or not hangs or shard.last_update
  local moved = renews and moves(head.stamp, head.start, grown or closes ~= 0 and not hangs)
  if moved or head.size == 0 then cohort[#cohort + 1] = number end
  sets[#sets + 1] = number
  sets[#sets + 1] = pack_head(moved and stamp or head.stamp, head.spout_id, head.start, present, head.owned, bor(head.failed, open),
    head.settled) .. spread(values_of(block, head), head.present, present, 8) .. components
end

for i = 1, n do
  local number, block, mask = numbers[i], blocks[i], masks[i]
  local flags = SLOT_FLAGS[mask]
  local state = flags and block and #block == ALONE_BYTES and string.byte(block, 10) - flags
  if flags and not block or state and state >= WAITING and state <= CLOSED then
    fail_alone(number, block, flags)
  else
    fail_shared(number, block, mask)
  end
end

redis.call('SADD', KEYS[dedup + shard.nursery], idempotency_key, idempotency_key .. digest)
if #sets > 0 then redis.call('HSET', ledger, unpack(sets)) end
if #cohort > 0 then redis.call('ZADD', KEYS[bucket + shard.nursery], now, table.concat(cohort)) end
local names, ages, components = {}, {}, {}
for _, row in ipairs(settled) do
  write_failed(KEYS[failed + row.spout_id % shard.lanes], row.root, row.spout_id, 'failed', detail, row.age,
    component_name(meta, names, row.component))
  ages[row.age] = (ages[row.age] or 0) + 1
  components[row.component] = (components[row.component] or 0) + 1
end
write_ages(latency, 'failed', ages)
if #settled > 0 then
  redis.call('HINCRBY', stats, 'failed', #settled)
  redis.call('HINCRBY', stats, 'closed', #settled)
  if released == '1' then
    redis.call('HINCRBY', stats, 'released', #settled)
  else
    write_components(stats, 'failed', components)
  end
end
if late > 0 then redis.call('HINCRBY', stats, 'late_updates', late) end
if unowned > 0 then redis.call('HINCRBY', stats, 'unowned', unowned) end
redis.call('HINCRBY', stats, 'fails', applied)
return {APPLIED, applied}
