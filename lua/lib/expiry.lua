-- expiry: expires blocks whose time is over. An owned root times out, as one entry of the fail stream. A closed or settled
-- root is removed silently. A root without owner is removed silently and counted. Everything is read before the first write.
--- @include "lib/block"
--- @include "lib/shard"
--- @include "lib/outcomes"
local function none_expired()
  return {gone = {}, seen = {}, timed_out = {}, orphaned = 0, closed = 0}
end

local function take_expired(expired, number, block, now)
  if expired.seen[number] then return end
  expired.seen[number] = true
  expired.gone[#expired.gone + 1] = number
  if #block == ALONE_BYTES then
    local last_component, flags, _, spout_id, start = unpack_bytes('>BBI2I4I6', block, 9)
    local state = flags % 4
    if state == OWNED then
      expired.timed_out[#expired.timed_out + 1] = {root_at(number, (flags - state) / 4), spout_id, age_between(start, now), last_component}
    elseif state == CLOSED then
      expired.closed = expired.closed + 1
    else
      expired.orphaned = expired.orphaned + 1
    end
    return
  end
  local head = head_of(block)
  expired.closed = expired.closed + count_of(band(head.owned, head.failed))
  expired.orphaned = expired.orphaned + count_of(without(head.present, head.owned))
  local places, components, age = places_of(head.present), components_of(block, head), age_between(head.start, now)
  for _, slot in ipairs(slots_of(without(head.owned, head.over))) do
    expired.timed_out[#expired.timed_out + 1] = {root_at(number, slot), head.spout_id, age, string.byte(components, places[slot])}
  end
end

local function write_expired(first, lanes, ledger, meta, stats, latency, expired)
  local names, ages, components = {}, {}, {}
  if #expired.gone > 0 then redis.call('HDEL', ledger, unpack(expired.gone)) end
  for _, row in ipairs(expired.timed_out) do
    local spout_id = row[2]
    write_failed(KEYS[first + spout_id % lanes], row[1], spout_id, 'timeout', '', row[3], component_name(meta, names, row[4]))
    ages[row[3]] = (ages[row[3]] or 0) + 1
    components[row[4]] = (components[row[4]] or 0) + 1
  end
  write_ages(latency, 'timed_out', ages)
  write_components(stats, 'timed_out', components)
  if #expired.timed_out > 0 then redis.call('HINCRBY', stats, 'timed_out', #expired.timed_out) end
  if expired.orphaned > 0 then
    redis.call('HINCRBY', stats, 'orphaned', expired.orphaned)
    redis.call('HINCRBY', stats, 'unowned', -expired.orphaned)
  end
  if expired.closed > 0 then redis.call('HINCRBY', stats, 'closed', -expired.closed) end
end
