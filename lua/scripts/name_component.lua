#!lua flags=allow-oom
--[[
name_component: store the name of a component number in a shard, so that the entries of its fail stream are readable.

KEYS
  meta  HASH  acker:{app:shard}:meta
ARGV
  generation  marker that the client read when it opened the shard
  number      1 ... 255, from component.lua
  name        component name
Returns
  added  1, or 0 if the shard already had the name
Errors
  ACKERLOST
]]
--- @include "lib/shard"
local meta = KEYS[1]
local generation, number, name = ARGV[1], ARGV[2], ARGV[3]

if not open_shard(meta, generation) then return lost() end
return {redis.call('HSET', meta, 'component:' .. number, name)}
