#!lua
--[[
init: record the spout task of each root and its first ack value; a tree that is already zero or failed settles.
Storm: Acker.execute, stream __ack_init. An init of a root that already has its owner is ignored and counted. A root that
fails here is closed and its record moves to the nursery, as in fail.lua.

KEYS
  ledger  HASH     acker:{app:shard}:ledger
  meta    HASH     acker:{app:shard}:meta
  stats   HASH     acker:{app:shard}:stats
  bucket  ZSET*    acker:{app:shard}:bucket:<slot>
  fence   SET*     acker:{app:shard}:fence:<slot>
  acked   STREAM*  acker:{app:shard}:acked:<lane>
  failed  STREAM*  acker:{app:shard}:failed:<lane>
ARGV
  generation  marker the client read when it opened the shard
  token       names this batch; a batch whose token was seen changes nothing
  digest      8 bytes, hash of the batch's content
  task        owner of every root of this call, 0 <= task < 2^32
  repeats     roots the client left out because they stand twice in its batch; counted as duplicate_inits
  updates     (root 8 bytes, value 8 bytes) x n, n <= 1000, roots distinct
Returns
  status      APPLIED 0, SEEN 1, REUSED 2
  applied     roots that took this init
Errors
  ACKERLOST
]]
--- @include "lib/bytes"
--- @include "lib/record"
--- @include "lib/shard"
--- @include "lib/fence"
--- @include "lib/outcomes"
local ledger, meta, stats = KEYS[1], KEYS[2], KEYS[3]
local generation, token, digest, task, repeats, updates = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]

local shard = open_shard(meta, generation)
if not shard then return lost() end
local bucket, fence = 4, 4 + shard.slots
local acked, failed = fence + shard.slots, fence + shard.slots + shard.lanes

local status = fence_status(fence, shard.slots, token, digest)
if status ~= APPLIED then
  redis.call('HINCRBY', stats, 'fenced', 1)
  return {status, 0}
end

task = tonumber(task)
local now, stamp = shard.now, shard.stamp
local new_tail = pack_bytes('>BBI2I4I6', 0, OWNED, stamp, task, now)
local zero = string.rep('\0', 8)
local cohort, acked_rows, failed_rows, acked_count, duplicates = {}, {}, {}, 0, 0

local function settle_acked(root, age, last_stage)
  acked_count = acked_count + 1
  acked_rows[acked_count] = root .. pack_bytes('>I4B', age, last_stage)
end

-- In blocks: small calls cost less per root than large ones. All is read and worked out before the first write.
local BLOCK = 50
local n, at = #updates / 16, 1
local roots, values, sets, settled = {}, {}, {}, {}
local set_count, settled_count = 0, 0
for first = 1, n, BLOCK do
  local count = math.min(BLOCK, n - first + 1)
  for i = 1, count do roots[i], values[i], at = unpack_bytes('>c8c8', updates, at) end
  local records = redis.call('HMGET', ledger, unpack(roots, 1, count))
  for i = 1, count do
    local root, record, value = roots[i], records[i], values[i]
    local updated
    if not record then
      if value == zero then
        settle_acked(root, 0, 0)
      else
        updated = value .. new_tail
        cohort[#cohort + 1] = root
      end
    else
      local hi, lo, last_stage, flags, record_stamp, _, start = unpack_bytes('>i4i4BBI2I4I6', record)
      local age = age_between(start, now)
      if flags == OWNED or flags == CLOSED then
        duplicates = duplicates + 1
      else
        local value_hi, value_lo = unpack_bytes('>i4i4', value)
        hi, lo = bxor(hi, value_hi), bxor(lo, value_lo)
        if flags == WAITING and hi == 0 and lo == 0 then
          settled_count = settled_count + 1
          settled[settled_count] = root
          settle_acked(root, age, last_stage)
        else
          local closes = flags == FAILED
          local young = shard.max_age_ms == 0 or now - start < shard.max_age_ms
          if record_stamp ~= stamp and (closes or shard.last_update and young) then
            record_stamp = stamp
            cohort[#cohort + 1] = root
          end
          if closes then failed_rows[#failed_rows + 1] = {root, age, last_stage} end
          flags = closes and CLOSED or OWNED
          updated = pack_bytes('>i4i4BBI2I4I6', hi, lo, last_stage, flags, record_stamp, task, start)
        end
      end
    end
    if updated then
      sets[set_count + 1], sets[set_count + 2] = root, updated
      set_count = set_count + 2
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
if #cohort > 0 then redis.call('ZADD', KEYS[bucket + shard.nursery], now, table.concat(cohort)) end
if acked_count > 0 then
  write_acked(acked, shard.lanes, {[task] = acked_rows})
  redis.call('HINCRBY', stats, 'acked', acked_count)
end
if #failed_rows > 0 then
  local names = {}
  for _, row in ipairs(failed_rows) do
    write_failed(KEYS[failed + task % shard.lanes], row[1], task, 'failed', '', row[2], stage_name(meta, names, row[3]))
  end
  redis.call('HINCRBY', stats, 'failed', #failed_rows)
  redis.call('HINCRBY', stats, 'closed', #failed_rows)
end
redis.call('HINCRBY', stats, 'inits', n - duplicates)
if duplicates + repeats > 0 then redis.call('HINCRBY', stats, 'duplicate_inits', duplicates + repeats) end
return {APPLIED, n - duplicates}
