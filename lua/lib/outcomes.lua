-- outcomes: writes what settled. Acked roots are packed into one stream entry per call and task, as
-- (block 8 bytes, mask 4 bytes, age ms 4 bytes, last stage 1 byte) x n; every failed root is one readable entry.
--- @include "lib/bytes"
local function write_acked(first, lanes, by_task)
  for task, rows in pairs(by_task) do
    redis.call('XADD', KEYS[first + task % lanes], '*', 'task', task, 'blocks', table.concat(rows))
  end
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
