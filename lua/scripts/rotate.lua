#!lua flags=allow-oom
--[[
rotate: run one tick. The oldest bucket becomes death row, a new one the nursery. The oldest dedup window is dropped.
Storm: RotatingMap.rotate. The server's clock decides, so any number of rotators may call this, and each tick happens once.
A tick waits until death row is drained, so that an undrained row never becomes the nursery.
Each tick writes a sample of the counters, from which the dashboard computes rates. Samples are a ring of 60: one per tick, or
one per 10 s if ticks are faster.

KEYS
  meta    HASH   acker:{app:shard}:meta
  stats   HASH   acker:{app:shard}:stats
  samples HASH   acker:{app:shard}:samples
  bucket  ZSET*  acker:{app:shard}:bucket:<slot>
  dedup   SET*   acker:{app:shard}:dedup:<slot>
ARGV
  generation  marker that the client read when it opened the shard
  force       1 to tick now, regardless of the clock; 0 to tick only if a tick is due
Returns
  status      NOT_DUE 0, TICKED 1, DRAINING 2
  due_in_ms   time until the next tick is due, by the server's clock
  dead        number of cohorts on death row now
Errors
  ACKERLOST
]]
--- @include "lib/shard"
local meta, stats, samples = KEYS[1], KEYS[2], KEYS[3]
local generation, force = ARGV[1], ARGV[2]
local NOT_DUE, TICKED, DRAINING = 0, 1, 2

local shard = open_shard(meta, generation)
if not shard then return lost() end
local bucket, dedup = 4, 4 + shard.slots

local ring = redis.call('HMGET', meta, 'next_rotation_ms', 'tick_ms')
local due_in, tick_ms = tonumber(ring[1]) - shard.now, tonumber(ring[2])
local dead_slot = (shard.tick + 1) % shard.slots
local dead = redis.call('ZCARD', KEYS[bucket + dead_slot])
if due_in > tick_ms then -- the server's clock was set back: without this, ticks would stop until it caught up
  due_in = tick_ms
  redis.call('HSET', meta, 'next_rotation_ms', shard.now + tick_ms)
end
if force ~= '1' and due_in > 0 then return {NOT_DUE, due_in, dead} end
if dead > 0 then return {DRAINING, math.max(due_in, 0), dead} end

-- Count from now, not from the missed tick, so that a late rotator never expires a root before its timeout.
redis.call('UNLINK', KEYS[dedup + dead_slot])
redis.call('HSET', meta, 'tick', shard.tick + 1, 'last_rotation_ms', shard.now, 'next_rotation_ms', shard.now + tick_ms)
local counters = redis.pcall('HMGET', stats, 'inits', 'acked', 'failed', 'timed_out') -- a damaged key must not stop ticks
if not counters.err then
  local text = tostring(shard.now)
  for i = 1, 4 do text = text .. ' ' .. (counters[i] or '0') end
  redis.pcall('HSET', samples, math.floor(shard.now / math.max(tick_ms, 10000)) % 60, text)
end
return {TICKED, tick_ms, redis.call('ZCARD', KEYS[bucket + (shard.tick + 2) % shard.slots])}
