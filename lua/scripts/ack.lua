#!lua flags=allow-oom
--[[
ack: XOR one value into the ack val of each root, and settle the roots whose ack val becomes zero.
Storm: Acker.execute, stream __ack_ack. An ack may arrive before its init. The root then waits for its owner. An ack of a
closed root is late: it is counted and changes nothing. So is an ack of an acked root whose block still exists. A root that is
new to its block restarts the timeout of the whole block. Under last_update every ack does.
Acks may have a key each, such as one per record of a topic. An ack whose key was seen for its root changes nothing, and the
others of the call apply. So it doesn't matter how a program groups records into calls.

KEYS
  ledger  HASH     acker:{app:shard}:ledger
  meta    HASH     acker:{app:shard}:meta
  stats   HASH     acker:{app:shard}:stats
  latency HASH     acker:{app:shard}:latency
  bucket  ZSET*    acker:{app:shard}:bucket:<slot>
  dedup   SET*     acker:{app:shard}:dedup:<slot>
  acked   STREAM*  acker:{app:shard}:acked:<lane>
  scratch STRING*  acker:{app:shard}:scratch:<side>
ARGV
  generation  marker that the client read when it opened the shard
  idempotency_key  name of this batch. A batch whose idempotency key was seen before changes nothing. Not read with `keyed`
  digest      hash of the batch's content, 8 bytes. Not read with `keyed`
  component   number of the component that acks. 0 for none, so that the root keeps its last component
  keyed       empty, or (root 8 bytes, key 8 bytes, value 8 bytes) x m, pairs of root and key distinct, m <= 500: `updates` is their XOR
  updates     (block number 8 bytes, mask 4 bytes, values 8 bytes x slots of the mask) x n, blocks distinct, n <= 500
Returns
  status      APPLIED 0, SEEN 1, REUSED 2, PARTLY 4: keys of some acks were seen before, and the others are applied
  applied     number of roots that this ack changed
Errors
  ACKERLOST
]]
--- @include "lib/shard"
--- @include "lib/dedup"
--- @include "lib/keyed"
--- @include "lib/fold"
--- @include "lib/outcomes"
local ledger, meta, stats, latency = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local generation, idempotency_key, digest, component, keyed, updates = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]

local shard = open_shard(meta, generation)
if not shard then return lost() end
local bucket, dedup = 5, 5 + shard.slots
local acked = dedup + shard.slots
local scratch = acked + shard.lanes

local status, members, skipped = nil, nil, 0
if keyed == '' then
  status, members = dedup_status(dedup, shard.slots, idempotency_key, digest), {idempotency_key, idempotency_key .. digest}
else
  status, members, skipped, updates = keyed_status(dedup, shard.slots, keyed, updates)
end
if status == SEEN or status == REUSED then
  redis.call('HINCRBY', stats, 'deduplicated', math.max(1, skipped))
  return {status, 0}
end

component = tonumber(component)
local component_char = char(component)
local now, stamp = shard.now, shard.stamp
local cohort, by_spout_id, acked_count, applied, late, unowned = {}, {}, 0, 0, 0, 0

-- The last 14 bytes of the alone blocks of one init differ only in the slot, so the tail after an ack is computed once for
-- each. A closed root has no next tail: `false`.
local next_tails, moves, new_tails = {}, {}, {}
local function tail_after(tail, state)
  if state == CLOSED then
    next_tails[tail] = false
    return false
  end
  local next_tail = tail
  if component > 0 then next_tail = component_char .. sub(tail, 2) end
  if shard.last_update then
    local block_stamp, _, start = unpack_bytes('>I2I4I6', tail, 3)
    if block_stamp ~= stamp and is_young(shard, start) then
      next_tail = sub(next_tail, 1, 2) .. pack_bytes('>I2', stamp) .. sub(next_tail, 5)
      moves[tail] = true
    end
  end
  next_tails[tail] = next_tail
  return next_tail
end

local function new_tail(flags)
  new_tails[flags] = new_tails[flags] or pack_bytes('>BBI2I4I6', component, flags, stamp, 0, now)
  return new_tails[flags]
end

local ages = {}
local function rows_of_spout_id(spout_id)
  by_spout_id[spout_id] = by_spout_id[spout_id] or {}
  return by_spout_id[spout_id]
end

-- The outcome of an alone root, once its value is zero.
local function settle_alone(number, mask, tail)
  local last_component, _, _, spout_id, start = unpack_bytes('>BBI2I4I6', tail)
  local rows, age = by_spout_id[spout_id] or rows_of_spout_id(spout_id), age_between(start, now)
  rows[#rows + 1] = pack_bytes('>c8i4I4B', number, mask, age, component > 0 and component or last_component)
  ages[age] = (ages[age] or 0) + 1
  acked_count = acked_count + 1
end

-- This loop updates alone blocks and gathers shared ones for later. It works in groups, because small commands cost less per
-- root than large ones. Everything is read and computed before the first write to a lasting key.
local GROUP = 50
local numbers, masks, his, los, values, sets, gone, folds = {}, {}, {}, {}, {}, {}, {}, {}
local xor_numbers, xor_heads, xor_masks, xor_components, olds, news, xor_count, news_count = {}, {}, {}, {}, {}, {}, 0, 0
local set_count, gone_count, at, size = 0, 0, 1, #updates

local function set(number, block)
  sets[set_count + 1], sets[set_count + 2] = number, block
  set_count = set_count + 2
end

-- The head after an ack of some present slots: its text, and whether the block moves to the nursery. Cached: heads repeat.
local function next_head(head)
  if not head.next_text then
    head.moves = head.stamp ~= stamp and shard.last_update and is_young(shard, head.start)
    head.next_text = head.text
    if head.moves then
      head.next_text = pack_head(stamp, head.spout_id, head.start, head.present, head.owned, head.failed, head.settled)
    end
  end
  return head
end

-- Ack one open slot of a block. Returns false if its root completes, which is left to `xor_in`.
local function put_one(number, block, head, slot, hi, lo)
  local place = places_of(head.present)[slot]
  local at, component_at = HEAD_BYTES + 8 * place - 7, HEAD_BYTES + 8 * head.size + place
  local old_hi, old_lo = unpack_bytes('>i4i4', block, at)
  hi, lo = bxor(hi, old_hi), bxor(lo, old_lo)
  if hi == 0 and lo == 0 then return false end
  next_head(head)
  local front = head.moves and head.next_text .. sub(block, HEAD_BYTES + 1, at - 1) or sub(block, 1, at - 1)
  if head.moves then cohort[#cohort + 1] = number end
  if component == 0 or byte(block, component_at) == component then
    set(number, front .. pack_bytes('>i4i4', hi, lo) .. sub(block, at + 8))
  else
    set(number, front .. pack_bytes('>i4i4', hi, lo) .. sub(block, at + 8, component_at - 1) .. component_char
      .. sub(block, component_at + 1))
  end
  applied = applied + 1
  return true
end

-- Ack a few open slots of a block. Returns false if a root completes, which is left to `xor_in`.
local function put_few(number, block, head, mask, more)
  local places, parts, n, from, size = places_of(head.present), {}, 1, HEAD_BYTES + 1, head.size
  local slots = slots_of(mask)
  for i = 1, #slots do
    local place = HEAD_BYTES + places[slots[i]] * 8 - 7
    local hi, lo = unpack_bytes('>i4i4', block, place)
    local more_hi, more_lo = unpack_bytes('>i4i4', more, i * 8 - 7)
    hi, lo = bxor(hi, more_hi), bxor(lo, more_lo)
    if hi == 0 and lo == 0 then return false end
    parts[n + 1], parts[n + 2] = sub(block, from, place - 1), pack_bytes('>i4i4', hi, lo)
    n, from = n + 2, place + 8
  end
  if component > 0 then
    for i = 1, #slots do
      local place = HEAD_BYTES + 8 * size + places[slots[i]]
      parts[n + 1], parts[n + 2] = sub(block, from, place - 1), component_char
      n, from = n + 2, place + 1
    end
  end
  parts[n + 1] = sub(block, from)
  parts[1] = next_head(head).next_text
  if head.moves then cohort[#cohort + 1] = number end
  applied = applied + #slots
  set(number, concat(parts))
  return true
end

-- How the values of some slots are laid out as in their block: zeros, bytes of values, zeros, ..., zeros. Cached: both repeat.
local function layout_of(head, mask)
  local layout = head.layouts[mask]
  if layout then return layout end
  local places, slots, n, filled = places_of(head.present), slots_of(mask), 0, 0
  layout = {}
  for i = 1, #slots do
    local first = HEAD_BYTES + 8 * places[slots[i]] - 8
    if n > 0 and first == filled then
      layout[n] = layout[n] + 8
    else
      layout[n + 1], layout[n + 2] = sub(ZEROS, 1, first - filled), 8
      n = n + 2
    end
    filled = first + 8
  end
  layout[n + 1] = sub(ZEROS, 1, HEAD_BYTES + 9 * head.size - filled)
  head.layouts[mask] = layout
  return layout
end

-- Ack open slots of a block. BITOP XORs all such blocks of the call, and what is not a value with zeros.
local function xor_in(number, block, head, mask, more)
  local layout, from = layout_of(head, mask), 1
  for i = 2, #layout, 2 do
    local bytes = layout[i]
    news[news_count + 1] = layout[i - 1]
    news[news_count + 2] = bytes == #more and more or sub(more, from, from + bytes - 1)
    news_count, from = news_count + 2, from + bytes
  end
  news_count = news_count + 1
  news[news_count] = layout[#layout]
  xor_count = xor_count + 1
  xor_numbers[xor_count], xor_heads[xor_count], xor_masks[xor_count], olds[xor_count] = number, head, mask, block
  applied = applied + #more / 8
  xor_components[xor_count] = false
  if component > 0 then
    local components = components_of(block, head)
    local marked_ones = marked(components, head.present, mask, component_char)
    if marked_ones ~= components then xor_components[xor_count] = marked_ones end
  end
end

-- Ack the slots of a block that isn't alone in its ledger's field, or isn't there yet. `slot` is the only one, if there is one.
local function gather(number, block, mask, more, slot, hi, lo)
  if not block then -- with several slots: one alone is an alone block
    local count = count_of(mask)
    cohort[#cohort + 1] = number
    unowned = unowned + count
    applied = applied + count
    set(number, pack_head(stamp, 0, now, mask, 0, 0, 0) .. more .. rep(component_char, count))
    return
  end
  block = as_shared(block)
  local head = head_of(block)
  local open = without(mask, head.over)
  if open == mask and band(mask, head.present) == mask then
    local is_put
    if slot then
      is_put = put_one(number, block, head, slot, hi, lo)
    elseif #more < 8 * DENSE then
      is_put = put_few(number, block, head, mask, more)
    end
    if not is_put then xor_in(number, block, head, mask, more or pack_bytes('>i4i4', hi, lo)) end
    return
  end
  more = more or pack_bytes('>i4i4', hi, lo)
  local count = #more / 8
  if open ~= mask then
    late, more = late + count, picked(more, mask, open, 8)
    count = #more / 8
    late = late - count
  end
  applied = applied + count
  if open ~= 0 then fold_in(folds, number, block, head, open, more) end
end

local function settle(number, head, present, components, done)
  local rows, age = rows_of_spout_id(head.spout_id), age_between(head.start, now)
  for last_component, mask in pairs(by_component(components, present, done)) do
    rows[#rows + 1] = number .. pack_bytes('>i4I4B', mask, age, last_component)
  end
  local count = count_of(done)
  acked_count = acked_count + count
  ages[age] = (ages[age] or 0) + count
end

-- XOR the gathered blocks. In most of them only values change, or all roots complete. Returns an error reply if a command failed.
local function xor_gathered()
  local reply = xored(olds, news, KEYS[scratch], KEYS[scratch + 1])
  if is_error(reply) then return reply end
  local from = 1
  for i = 1, xor_count do
    local number, head, mask, components = xor_numbers[i], next_head(xor_heads[i]), xor_masks[i], xor_components[i]
    local block = sub(reply, from, from + head.bytes - 1)
    from = from + head.bytes
    local zero, done = find(block, ZERO_VALUE, HEAD_BYTES + 1, true), 0
    if zero and zero <= HEAD_BYTES + 8 * head.size - 7 then
      done = zeros_among(values_of(block, head), head.present, band(mask, head.owned))
    end
    if done == 0 then
      if head.moves or components then
        block = head.next_text .. values_of(block, head) .. (components or components_of(block, head))
      end
      if head.moves then cohort[#cohort + 1] = number end
      set(number, block)
    else
      components = components or components_of(block, head)
      settle(number, head, head.present, components, done)
      local settled = head.settled + done
      if settled == head.present then
        gone_count = gone_count + 1
        gone[gone_count] = number
      else
        if head.moves then cohort[#cohort + 1] = number end
        local text = pack_head(head.moves and stamp or head.stamp, head.spout_id, head.start, head.present, head.owned, head.failed, settled)
        set(number, text .. values_of(block, head) .. components)
      end
    end
  end
  olds, news, xor_count, news_count = {}, {}, 0, 0
  return nil
end

while at <= size do
  local count = 0
  while count < GROUP and at <= size do
    count = count + 1
    numbers[count], masks[count], his[count], los[count], at = unpack_bytes('>c8i4i4i4', updates, at)
    if not SLOT_FLAGS[masks[count]] then
      local first = at - 8
      at = first + 8 * #slots_of(masks[count])
      values[count] = sub(updates, first, at - 1)
    end
  end
  local blocks = redis.call('HMGET', ledger, unpack(numbers, 1, count))
  for i = 1, count do
    local number, block, mask, hi, lo = numbers[i], blocks[i], masks[i], his[i], los[i]
    local flags = SLOT_FLAGS[mask]
    local state = flags and block and #block == ALONE_BYTES and byte(block, 10) - flags
    if flags and not block then
      cohort[#cohort + 1] = number
      unowned = unowned + 1
      applied = applied + 1
      set(number, pack_bytes('>i4i4c14', hi, lo, new_tail(flags + WAITING)))
    elseif state and state >= WAITING and state <= CLOSED then
      local old_hi, old_lo, tail = unpack_bytes('>i4i4c14', block)
      hi, lo = bxor(hi, old_hi), bxor(lo, old_lo)
      if hi == 0 and lo == 0 and state == OWNED then
        settle_alone(number, mask, tail)
        applied = applied + 1
        gone_count = gone_count + 1
        gone[gone_count] = number
      else
        local next_tail = next_tails[tail]
        if next_tail == nil then next_tail = tail_after(tail, state) end
        if next_tail then
          if moves[tail] then cohort[#cohort + 1] = number end
          applied = applied + 1
          set(number, pack_bytes('>i4i4c14', hi, lo, next_tail))
        else
          late = late + 1
        end
      end
    else
      gather(number, block, mask, not flags and values[i], flags and flags / 4, hi, lo)
    end
  end
  if xor_count > 0 then
    local problem = xor_gathered()
    if problem then return problem end
  end
end


local problem = fold_all(folds, KEYS[scratch], KEYS[scratch + 1])
if problem then return problem end
for _, fold in ipairs(folds) do
  local head, present, components = fold.head, fold.present, fold.components
  local done = zeros_among(fold.values, present, band(fold.mask, without(head.owned, head.over)))
  local settled = head.settled + done
  if fold.grown then unowned = unowned + count_of(without(present, head.present)) end
  if component > 0 then components = marked(components, present, fold.mask, component_char) end
  if done ~= 0 then settle(fold.number, head, present, components, done) end
  if settled == present then
    gone_count = gone_count + 1
    gone[gone_count] = fold.number
  else
    local text = head.text
    local moved = head.stamp ~= stamp and (fold.grown or shard.last_update and is_young(shard, head.start))
    if moved then cohort[#cohort + 1] = fold.number end
    if moved or fold.grown or done ~= 0 then
      text = pack_head(moved and stamp or head.stamp, head.spout_id, head.start, present, head.owned, head.failed, settled)
    end
    set(fold.number, text .. fold.values .. components)
  end
end

redis.call('SADD', KEYS[dedup + shard.nursery], unpack(members))
for first = 1, set_count, 2 * GROUP do
  redis.call('HSET', ledger, unpack(sets, first, math.min(first + 2 * GROUP - 1, set_count)))
end
for first = 1, gone_count, GROUP do
  redis.call('HDEL', ledger, unpack(gone, first, math.min(first + GROUP - 1, gone_count)))
end
if acked_count > 0 then
  write_acked(acked, shard.lanes, by_spout_id)
  write_ages(latency, 'acked', ages)
  redis.call('HINCRBY', stats, 'acked', acked_count)
end
if #cohort > 0 then redis.call('ZADD', KEYS[bucket + shard.nursery], now, concat(cohort)) end
if late > 0 then redis.call('HINCRBY', stats, 'late_updates', late) end
if unowned > 0 then redis.call('HINCRBY', stats, 'unowned', unowned) end
if skipped > 0 then redis.call('HINCRBY', stats, 'deduplicated', skipped) end
redis.call('HINCRBY', stats, 'acks', applied)
return {status, applied}
