#!lua flags=allow-oom
--[[
ack: fold one ack value into each root's tree and settle the trees that reach zero.
Storm: Acker.execute, stream __ack_ack. An ack may come before its init: the record then waits for its owner. An ack of a
root that is closed is late: it is counted and changes nothing.

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
--- @include "lib/record"
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

stage = tonumber(stage)
local now, stamp = shard.now, shard.stamp
local new_tail = pack_bytes('>BBI2I4I6', stage, WAITING, stamp, 0, now)
local cohort, by_task, settled_count, late = {}, {}, 0, 0
local sub, byte = string.sub, string.byte

-- The last 14 bytes are the same in all records of one init, so what follows from them is worked out once. A closed root
-- has no next tail, which is told by false.
local next_tails, moves = {}, {}
local function tail_after(tail)
  if byte(tail, 2) == CLOSED then
    next_tails[tail] = false
    return false
  end
  local next_tail = tail
  if stage > 0 then next_tail = string.char(stage) .. sub(tail, 2) end
  if shard.last_update then
    local record_stamp, _, start = unpack_bytes('>I2I4I6', tail, 3)
    local young = shard.max_age_ms == 0 or now - start < shard.max_age_ms
    if record_stamp ~= stamp and young then
      next_tail = sub(next_tail, 1, 2) .. pack_bytes('>I2', stamp) .. sub(next_tail, 5)
      moves[tail] = true
    end
  end
  next_tails[tail] = next_tail
  return next_tail
end

local outcomes, rows_of = {}, {}
local function outcome_of(tail)
  local last_stage, _, _, task, start = unpack_bytes('>BBI2I4I6', tail)
  if stage > 0 then last_stage = stage end
  by_task[task] = by_task[task] or {}
  rows_of[tail] = by_task[task]
  outcomes[tail] = pack_bytes('>I4B', age_between(start, now), last_stage)
  return outcomes[tail]
end

-- In blocks: small calls cost less per root than large ones. All is read and worked out before the first write.
local BLOCK = 50
local n, at = #updates / 16, 1
local roots, his, los, sets, settled = {}, {}, {}, {}, {}
local set_count = 0
for first = 1, n, BLOCK do
  local count = math.min(BLOCK, n - first + 1)
  for i = 1, count do roots[i], his[i], los[i], at = unpack_bytes('>c8i4i4', updates, at) end
  local records = redis.call('HMGET', ledger, unpack(roots, 1, count))
  for i = 1, count do
    local root, record, hi, lo = roots[i], records[i], his[i], los[i]
    if not record then
      cohort[#cohort + 1] = root
      sets[set_count + 1], sets[set_count + 2] = root, pack_bytes('>i4i4c14', hi, lo, new_tail)
      set_count = set_count + 2
    else
      local old_hi, old_lo, tail = unpack_bytes('>i4i4c14', record)
      hi, lo = bxor(hi, old_hi), bxor(lo, old_lo)
      if hi == 0 and lo == 0 and byte(tail, 2) == OWNED then
        local outcome, rows = outcomes[tail] or outcome_of(tail), rows_of[tail]
        local row = #rows
        rows[row + 1], rows[row + 2] = root, outcome
        settled_count = settled_count + 1
        settled[settled_count] = root
      else
        local next_tail = next_tails[tail]
        if next_tail == nil then next_tail = tail_after(tail) end
        if next_tail then
          if moves[tail] then cohort[#cohort + 1] = root end
          sets[set_count + 1], sets[set_count + 2] = root, pack_bytes('>i4i4c14', hi, lo, next_tail)
          set_count = set_count + 2
        else
          late = late + 1
        end
      end
    end
  end
end

redis.call('SADD', KEYS[fence + shard.nursery], token, token .. digest)
for first = 1, set_count, 2 * BLOCK do
  redis.call('HSET', ledger, unpack(sets, first, math.min(first + 2 * BLOCK - 1, set_count)))
end
for first = 1, settled_count, BLOCK do
  redis.call('HDEL', ledger, unpack(settled, first, math.min(first + BLOCK - 1, settled_count)))
end
if settled_count > 0 then
  write_acked(acked, shard.lanes, by_task)
  redis.call('HINCRBY', stats, 'acked', settled_count)
end
if #cohort > 0 then redis.call('ZADD', KEYS[bucket + shard.nursery], now, table.concat(cohort)) end
if late > 0 then redis.call('HINCRBY', stats, 'late_updates', late) end
redis.call('HINCRBY', stats, 'acks', n - late)
return {APPLIED, n - late}
