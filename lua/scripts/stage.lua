#!lua flags=allow-oom
--[[
stage: the number of a stage name, given at first use. A record keeps its last stage in one byte, so an app has at most
255 stages.

KEYS
  stages  HASH  acker:{app}:stages
ARGV
  name    stage name
Returns
  number  1 ... 255, or FULL 0
]]
local stages = KEYS[1]
local name = ARGV[1]
local FULL = 0

local number = redis.call('HGET', stages, name)
if number then return {tonumber(number)} end
number = redis.call('HLEN', stages) + 1
if number > 255 then return {FULL} end
redis.call('HSET', stages, name, number)
return {number}
