#!lua flags=allow-oom
--[[
rotate: one tick. The oldest bucket becomes death row, a fresh one the nursery; the oldest dedup window is forgotten.
Storm: RotatingMap.rotate. The server's clock decides, so any number of rotators may call it and each tick happens once.
A tick waits while death row is still being drained, so an undrained row never becomes the nursery.
Each tick leaves a sample of the counters, from which the dashboard has rates: a ring of 60, one per tick, or per 10 s where
ticks come faster.

KEYS
  meta    HASH   acker:{app:shard}:meta
  stats   HASH   acker:{app:shard}:stats
  samples HASH   acker:{app:shard}:samples
  bucket  ZSET*  acker:{app:shard}:bucket:<slot>
  dedup   SET*   acker:{app:shard}:dedup:<slot>
ARGV
  generation  marker the client read when it opened the shard
  force       1: tick now, whatever the clock says; 0: only when a tick is due
Returns
  status      NOT_DUE 0, TICKED 1, DRAINING 2
  due_in_ms   until the next tick is due, by the server's clock
  dead        cohorts on death row now
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
if due_in > tick_ms then -- the server's clock was set back: without this no tick would come until it caught up
  due_in = tick_ms
  redis.call('HSET', meta, 'next_rotation_ms', shard.now + tick_ms)
end
if force ~= '1' and due_in > 0 then return {NOT_DUE, due_in, dead} end
if dead > 0 then return {DRAINING, math.max(due_in, 0), dead} end

-- Spaced from now, not from the missed time: a rotator that was away never expires a root before its timeout.
redis.call('UNLINK', KEYS[dedup + dead_slot])
redis.call('HSET', meta, 'tick', shard.tick + 1, 'last_rotation_ms', shard.now, 'next_rotation_ms', shard.now + tick_ms)
local counters = redis.pcall('HMGET', stats, 'inits', 'acked', 'failed', 'timed_out') -- a damaged key holds up no tick
if not counters.err then
  local text = tostring(shard.now)
  for i = 1, 4 do text = text .. ' ' .. (counters[i] or '0') end
  redis.pcall('HSET', samples, math.floor(shard.now / math.max(tick_ms, 10000)) % 60, text)
end
return {TICKED, tick_ms, redis.call('ZCARD', KEYS[bucket + (shard.tick + 2) % shard.slots])}
