#!lua flags=allow-oom
--[[
ack: fold one ack value into each root's tree and settle the trees that reach zero.
Storm: Acker.execute, stream __ack_ack. An ack may come before its init: the record then waits for its owner.

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

redis.call('HGET', ledger, '') -- a key of another type fails here, before anything is written
redis.call('SADD', KEYS[fence + shard.nursery], token, token .. digest)

stage = tonumber(stage)
local now, stamp = shard.now, shard.stamp
local new_tail = pack_bytes('>BBI2I4I6', stage, 0, stamp, 0, now)
local cohort, by_task, settled_count = {}, {}, 0

-- The last 14 bytes are the same in all records of one init, so what follows from them is worked out once.
local tails = {}
local function read_tail(tail)
  local last_stage, flags, record_stamp, task, start = unpack_bytes('>BBI2I4I6', tail)
  if stage > 0 then last_stage = stage end
  local young = shard.max_age_ms == 0 or now - start < shard.max_age_ms
  local moves = shard.last_update and record_stamp ~= stamp and young
  if moves then record_stamp = stamp end
  tails[tail] = {
    owned = flags == 1,
    task = task,
    moves = moves,
    tail = pack_bytes('>BBI2I4I6', last_stage, flags, record_stamp, task, start),
    outcome = pack_bytes('>I4B', age_between(start, now), last_stage),
  }
  return tails[tail]
end

-- In blocks: small calls cost less per root, and what HMGET read is still in the processor's cache for HSET.
local BLOCK = 50
local n, at = #updates / 16, 1
local roots, his, los, sets, settled = {}, {}, {}, {}, {}
for first = 1, n, BLOCK do
  local count = math.min(BLOCK, n - first + 1)
  for i = 1, count do roots[i], his[i], los[i], at = unpack_bytes('>c8i4i4', updates, at) end
  local records = redis.call('HMGET', ledger, unpack(roots, 1, count))
  local set_count, gone = 0, 0
  for i = 1, count do
    local root, record, hi, lo = roots[i], records[i], his[i], los[i]
    if not record then
      cohort[#cohort + 1] = root
      sets[set_count + 1], sets[set_count + 2] = root, pack_bytes('>i4i4c14', hi, lo, new_tail)
      set_count = set_count + 2
    else
      local old_hi, old_lo, tail = unpack_bytes('>i4i4c14', record)
      local known = tails[tail] or read_tail(tail)
      hi, lo = bxor(hi, old_hi), bxor(lo, old_lo)
      if hi == 0 and lo == 0 and known.owned then
        local rows = by_task[known.task]
        if not rows then rows = {}; by_task[known.task] = rows end
        local row = #rows
        rows[row + 1], rows[row + 2] = root, known.outcome
        gone = gone + 1
        settled[gone] = root
      else
        if known.moves then cohort[#cohort + 1] = root end
        sets[set_count + 1], sets[set_count + 2] = root, pack_bytes('>i4i4c14', hi, lo, known.tail)
        set_count = set_count + 2
      end
    end
  end
  if set_count > 0 then redis.call('HSET', ledger, unpack(sets, 1, set_count)) end
  if gone > 0 then redis.call('HDEL', ledger, unpack(settled, 1, gone)) end
  settled_count = settled_count + gone
end

if settled_count > 0 then
  write_acked(acked, shard.lanes, by_task)
  redis.call('HINCRBY', stats, 'acked', settled_count)
end
if #cohort > 0 then redis.call('ZADD', KEYS[bucket + shard.nursery], now, table.concat(cohort)) end
redis.call('HINCRBY', stats, 'acks', n)
return {APPLIED, n}
