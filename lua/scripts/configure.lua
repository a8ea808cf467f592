#!lua flags=allow-oom
--[[
configure: write the settings of an app if this is its first client; return the settings in force.

KEYS
  config  HASH  acker:{app}:config
ARGV
  settings*  name, value, name, value ... of the client that asks
Returns
  settings*  name, value ... in force, for the client to compare with its own
]]
local config = KEYS[1]
if redis.call('EXISTS', config) == 0 then redis.call('HSET', config, unpack(ARGV)) end
return redis.call('HGETALL', config)
