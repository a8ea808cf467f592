#!lua flags=allow-oom
--[[
component: return the number of a component name, and assign one at its first use. A block stores the last component of a root
in one byte, so an app has at most 255 components.

KEYS
  components  HASH  acker:{app}:components
ARGV
  name    component name
Returns
  number  1 ... 255, or FULL 0
]]
local components = KEYS[1]
local name = ARGV[1]
local FULL = 0

local number = redis.call('HGET', components, name)
if number then return {tonumber(number)} end
number = redis.call('HLEN', components) + 1
if number > 255 then return {FULL} end
redis.call('HSET', components, name, number)
return {number}
