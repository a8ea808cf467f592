#!lua flags=no-writes
--[[
clock: the server's time, and how long ago the shard ticked. Ages are never taken from a client's clock.

KEYS
  meta  HASH  acker:{app:shard}:meta
ARGV
  generation  marker the client read when it opened the shard
Returns
  now_ms           the server's time
  rotation_age_ms  since the last tick, or since the shard was created
Errors
  ACKERLOST
]]
--- @include "lib/shard"
local meta = KEYS[1]
local generation = ARGV[1]

local shard = open_shard(meta, generation)
if not shard then return lost() end
return {shard.now, age_between(tonumber(redis.call('HGET', meta, 'last_rotation_ms')), shard.now)}
