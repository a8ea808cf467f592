#!lua flags=allow-oom
--[[
claim_bin: claim a bin of a topology's turn for the updates with one digest. Only the holder of the claim sends them. A task that
runs again with the same updates gets the claim again, unless all of them were sent. One with other updates doesn't.
A turn that the driver closed, or that is forgotten, grants no claim.

KEYS
  turn  HASH  acker:{app}:turn:<run>:<number>
ARGV
  bin      number of the bin
  digest   hash of the bin's updates, 16 bytes
  keep_ms  time until the turn is forgotten
Returns
  status  CLAIMED 0, SENT 1: all of its updates were sent, OTHER 2: claimed with another digest, CLOSED 3
]]
local turn = KEYS[1]
local bin, digest, keep_ms = ARGV[1], ARGV[2], ARGV[3]
local CLAIMED, SENT, OTHER, CLOSED = 0, 1, 2, 3

local found = redis.call('HMGET', turn, 'state', bin)
if found[1] ~= 'open' then return {CLOSED} end
if found[2] and string.sub(found[2], 2) ~= digest then return {OTHER} end
if found[2] and string.sub(found[2], 1, 1) == 's' then return {SENT} end
redis.call('HSET', turn, bin, 'c' .. digest)
redis.call('PEXPIRE', turn, keep_ms)
return {CLAIMED}
