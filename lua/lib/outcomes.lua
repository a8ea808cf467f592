-- outcomes: writes what settled. Acked roots are packed into one stream entry per call and task, as
-- (block 8 bytes, mask 4 bytes, age ms 4 bytes, last stage 1 byte) x n; every failed root is one readable entry.
--- @include "lib/bytes"
local function write_acked(first, lanes, by_task)
  for task, rows in pairs(by_task) do
    redis.call('XADD', KEYS[first + task % lanes], '*', 'task', task, 'blocks', table.concat(rows))
  end
end

-- How old roots were when they settled: counted by outcome and the least of these bounds, in ms, that is not below it.
local AGE_BOUNDS = {50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000, 500000, 1000000, 2000000, 5000000}
local function write_ages(latency, outcome, counts_by_age)
  local counts = {}
  for age, n in pairs(counts_by_age) do
    local bound = 'more'
    for i = #AGE_BOUNDS, 1, -1 do
      if age > AGE_BOUNDS[i] then break end
      bound = AGE_BOUNDS[i]
    end
    counts[bound] = (counts[bound] or 0) + n
  end
  for bound, n in pairs(counts) do redis.call('HINCRBY', latency, outcome .. ':' .. bound, n) end
end

local function stage_name(meta, cache, number)
  if number == 0 then return '' end
  if not cache[number] then
    cache[number] = redis.call('HGET', meta, 'stage:' .. number) or tostring(number)
  end
  return cache[number]
end

local function write_failed(stream, root, task, reason, detail, age_ms, last_stage)
  local hi, lo = unpack_bytes('>I4I4', root)
  local hex = string.format('%08x%08x', hi, lo)
  if detail == '' then
    redis.call('XADD', stream, '*', 'root', hex, 'task', task, 'reason', reason, 'age_ms', age_ms, 'last_stage',
      last_stage)
  else
    redis.call('XADD', stream, '*', 'root', hex, 'task', task, 'reason', reason, 'age_ms', age_ms, 'last_stage',
      last_stage, 'detail', detail)
  end
end
