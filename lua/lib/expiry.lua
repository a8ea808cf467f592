-- expiry: what becomes of records whose time is over. An owned root times out, as one entry of the fail stream; a closed
-- one goes silently; one without owner goes silently and is counted. All is taken before the first write.
--- @include "lib/bytes"
--- @include "lib/record"
--- @include "lib/shard"
--- @include "lib/outcomes"
local function none_expired()
  return {gone = {}, seen = {}, timed_out = {}, orphaned = 0, closed = 0}
end

local function take_expired(expired, root, record, now)
  if expired.seen[root] then return end
  expired.seen[root] = true
  expired.gone[#expired.gone + 1] = root
  local last_stage, flags, _, task, start = unpack_bytes('>BBI2I4I6', record, 9)
  if flags == OWNED then
    expired.timed_out[#expired.timed_out + 1] = {root, task, age_between(start, now), last_stage}
  elseif flags == CLOSED then
    expired.closed = expired.closed + 1
  else
    expired.orphaned = expired.orphaned + 1
  end
end

local function write_expired(first, lanes, ledger, meta, stats, expired)
  local names = {}
  if #expired.gone > 0 then redis.call('HDEL', ledger, unpack(expired.gone)) end
  for _, row in ipairs(expired.timed_out) do
    local task = row[2]
    write_failed(KEYS[first + task % lanes], row[1], task, 'timeout', '', row[3], stage_name(meta, names, row[4]))
  end
  if #expired.timed_out > 0 then redis.call('HINCRBY', stats, 'timed_out', #expired.timed_out) end
  if expired.orphaned > 0 then redis.call('HINCRBY', stats, 'orphaned', expired.orphaned) end
  if expired.closed > 0 then redis.call('HINCRBY', stats, 'closed', -expired.closed) end
end
