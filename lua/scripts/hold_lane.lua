#!lua flags=allow-oom
--[[
hold_lane: acquire the lease of a lane if it is free, or renew it if this process holds it. A full server grants it, too, so that
a run keeps its lane, and the person on call can abandon a dead run.

KEYS
  runs   HASH    acker:{app}:runs
  lease  STRING  acker:{app}:lane:<lane>
ARGV
  lane    number of the lane
  holder  run id and process that want the lane
  ttl_ms  time until the lease expires, unless it is renewed
Returns
  holder  run id and process that hold the lane now
]]
local runs, lease = KEYS[1], KEYS[2]
local lane, holder, ttl_ms = ARGV[1], ARGV[2], ARGV[3]

local held = redis.call('GET', lease)
if held and held ~= holder then return {held} end
if held then
  redis.call('PEXPIRE', lease, ttl_ms)
else
  redis.call('SET', lease, holder, 'PX', ttl_ms)
  redis.call('HSET', runs, lane, holder)
end
return {holder}
