#!lua flags=allow-oom
--[[
configure: write the settings of an app if this is its first client, and return the settings in force.

KEYS
  config  HASH  acker:{app}:config
ARGV
  settings*  name, value, name, value ... of the calling client
Returns
  settings*  name, value ... in force, which the client compares with its own
]]
local config = KEYS[1]
if redis.call('EXISTS', config) == 0 then redis.call('HSET', config, unpack(ARGV)) end
return redis.call('HGETALL', config)
