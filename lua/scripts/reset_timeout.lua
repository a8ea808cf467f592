#!lua flags=allow-oom
--[[
reset_timeout: restart the timeout of each root, by moving its block with all its roots to the nursery.
Storm: Acker.execute, stream __ack_reset_timeout. Divergence: an unknown or closed root is not changed, and counted as late.
The call needs no dedup window, because a repeat only moves the block again. A block older than max_age_ms does not move.

KEYS
  ledger  HASH   acker:{app:shard}:ledger
  meta    HASH   acker:{app:shard}:meta
  stats   HASH   acker:{app:shard}:stats
  bucket  ZSET*  acker:{app:shard}:bucket:<slot>
ARGV
  generation  marker that the client read when it opened the shard
  updates     (block number 8 bytes, mask 4 bytes) x n, blocks distinct, n <= 500
Returns
  applied     number of these roots that are in the nursery now
Errors
  ACKERLOST
]]
--- @include "lib/block"
--- @include "lib/shard"
local ledger, meta, stats = KEYS[1], KEYS[2], KEYS[3]
local generation, updates = ARGV[1], ARGV[2]

local shard = open_shard(meta, generation)
if not shard then return lost() end
local bucket = 4

local n, at = #updates / 12, 1
local numbers, masks = {}, {}
for i = 1, n do numbers[i], masks[i], at = unpack_bytes('>c8i4', updates, at) end
local blocks = redis.call('HMGET', ledger, unpack(numbers))

local new_stamp = pack_bytes('>I2', shard.stamp)
local sets, cohort, applied, late = {}, {}, 0, 0

-- Number of these roots that are neither settled nor closed, and the block's tick stamp and start.
local function count_open(block, mask)
  if #block == ALONE_BYTES then
    local flags, block_stamp, _, start = unpack_bytes('>BI2I4I6', block, 10)
    local state = flags % 4
    local known = state ~= CLOSED and band(mask, BIT[(flags - state) / 4]) ~= 0
    return known and 1 or 0, block_stamp, start
  end
  local head = head_of(block)
  return count_of(band(mask, without(head.present, head.over))), head.stamp, head.start
end

for i = 1, n do
  local number, block, mask = numbers[i], blocks[i], masks[i]
  local open, block_stamp, start = 0, nil, nil
  if block then open, block_stamp, start = count_open(block, mask) end
  late = late + count_of(mask) - open
  if open > 0 then
    if block_stamp == shard.stamp then
      applied = applied + open
    elseif is_young(shard, start) then
      applied = applied + open
      cohort[#cohort + 1] = number
      sets[#sets + 1] = number
      if #block == ALONE_BYTES then
        sets[#sets + 1] = sub(block, 1, 10) .. new_stamp .. sub(block, 13)
      else
        sets[#sets + 1] = new_stamp .. sub(block, 3)
      end
    end
  end
end

if #sets > 0 then
  redis.call('HSET', ledger, unpack(sets))
  redis.call('ZADD', KEYS[bucket + shard.nursery], shard.now, table.concat(cohort))
end
if late > 0 then redis.call('HINCRBY', stats, 'late_updates', late) end
return {applied}
