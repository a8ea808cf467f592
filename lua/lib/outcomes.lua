-- outcomes: writes the outcomes of roots that settled. Acked roots are packed into one stream entry per call and spout_id, as
-- (block number 8 bytes, mask 4 bytes, age ms 4 bytes, last component 1 byte) x n. Each failed root is one readable entry.
--- @include "lib/bytes"
local function write_acked(first, lanes, by_spout_id)
  for spout_id, rows in pairs(by_spout_id) do
    redis.call('XADD', KEYS[first + spout_id % lanes], '*', 'spout_id', spout_id, 'blocks', table.concat(rows))
  end
end

-- The ages of roots when they settled are counted by outcome and by the smallest of these bounds, in ms, that is not below the
-- age. Written out as texts, because every call runs these lines, and a table of numbers cost as much as the command.
local function bound_of(age)
  if age <= 50 then return '50' end
  if age <= 100 then return '100' end
  if age <= 200 then return '200' end
  if age <= 500 then return '500' end
  if age <= 1000 then return '1000' end
  if age <= 2000 then return '2000' end
  if age <= 5000 then return '5000' end
  if age <= 10000 then return '10000' end
  if age <= 20000 then return '20000' end
  if age <= 50000 then return '50000' end
  if age <= 100000 then return '100000' end
  if age <= 200000 then return '200000' end
  if age <= 500000 then return '500000' end
  if age <= 1000000 then return '1000000' end
  if age <= 2000000 then return '2000000' end
  if age <= 5000000 then return '5000000' end
  return 'more'
end

local function write_ages(latency, outcome, counts_by_age)
  local only, n = next(counts_by_age)
  if only == nil then return end
  if next(counts_by_age, only) == nil then
    redis.call('HINCRBY', latency, outcome .. ':' .. bound_of(only), n)
    return
  end
  local counts = {}
  for age, more in pairs(counts_by_age) do
    local bound = bound_of(age)
    counts[bound] = (counts[bound] or 0) + more
  end
  for bound, all in pairs(counts) do redis.call('HINCRBY', latency, outcome .. ':' .. bound, all) end
end

local function component_name(meta, cache, number)
  if number == 0 then return '' end
  if not cache[number] then
    cache[number] = redis.call('HGET', meta, 'component:' .. number) or tostring(number)
  end
  return cache[number]
end

-- Counts failed or timed-out roots by their last component.
local function write_components(stats, outcome, counts)
  for component, n in pairs(counts) do redis.call('HINCRBY', stats, outcome .. ':' .. component, n) end
end

local function write_failed(stream, root, spout_id, reason, detail, age_ms, last_component)
  local hi, lo = unpack_bytes('>I4I4', root)
  local hex = string.format('%08x%08x', hi, lo)
  if detail == '' then
    redis.call('XADD', stream, '*', 'root', hex, 'spout_id', spout_id, 'reason', reason, 'age_ms', age_ms, 'last_component',
      last_component)
  else
    redis.call('XADD', stream, '*', 'root', hex, 'spout_id', spout_id, 'reason', reason, 'age_ms', age_ms, 'last_component',
      last_component, 'detail', detail)
  end
end
