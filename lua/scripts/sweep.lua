#!lua flags=allow-oom
--[[
sweep: scan a bounded part of the ledger for stale blocks, and expire them. A block is stale if the ring has turned past its
tick stamp. Its cohort is gone (an evicted bucket), so no drain of death row will ever find it.
Each call runs one HSCAN step, from the end of the last call. The next call repeats a step with more stale blocks than the
limit. A small hash that the server stores as a listpack is scanned in one step, regardless of the limit.

KEYS
  ledger  HASH     acker:{app:shard}:ledger
  meta    HASH     acker:{app:shard}:meta
  stats   HASH     acker:{app:shard}:stats
  latency HASH     acker:{app:shard}:latency
  failed  STREAM*  acker:{app:shard}:failed:<lane>
ARGV
  generation  marker that the client read when it opened the shard
  limit       COUNT of the HSCAN, and maximum number of roots to time out, up to one block more; at most 1000
Returns
  status      DONE 0: the pass is over, and the next call begins another; MORE 1
  timed_out   number of owned roots that expired
  orphaned    number of roots without owner that expired
  looked_at   number of blocks that this call has processed
  blocks      number of blocks in the ledger now
Errors
  ACKERLOST
]]
--- @include "lib/shard"
--- @include "lib/expiry"
local ledger, meta, stats, latency = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local generation, limit = ARGV[1], ARGV[2]
local DONE, MORE = 0, 1

local shard = open_shard(meta, generation)
if not shard then return lost() end
local failed = 5

local from = redis.call('HGET', meta, 'sweep_cursor') or '0'
local step = redis.call('HSCAN', ledger, from, 'COUNT', limit)
local next_cursor, numbers_and_blocks = step[1], step[2]
local expired, room, cut, looked_at = none_expired(), tonumber(limit), false, 0
for i = 1, #numbers_and_blocks, 2 do
  local block = numbers_and_blocks[i + 1]
  -- A block on death row (exactly num_buckets ticks old) is not stale, because it is being drained.
  if (shard.tick - stamp_of(block)) % 65536 > shard.num_buckets then
    if math.max(#expired.gone, #expired.timed_out) >= room then
      cut = true
      break
    end
    take_expired(expired, numbers_and_blocks[i], block, shard.now)
  end
  looked_at = looked_at + 1
end

write_expired(failed, shard.lanes, ledger, meta, stats, latency, expired)
if not cut and next_cursor ~= from then redis.call('HSET', meta, 'sweep_cursor', next_cursor) end
return {(cut or next_cursor ~= '0') and MORE or DONE, #expired.timed_out, expired.orphaned, looked_at, redis.call('HLEN', ledger)}
