#!lua flags=allow-oom
--[[
close_turn: close a topology's turn before any of its bins was claimed, so that a task that wakes up late sends nothing. A turn with
a claim stays as it is: some of its updates may have been sent.

KEYS
  turn  HASH  acker:{app}:turn:<run>:<number>
ARGV
  keep_ms  time until the turn is forgotten
Returns
  status  CLOSED 0, CLAIMED 1: a bin was claimed. Nothing was changed
]]
local turn = KEYS[1]
local keep_ms = ARGV[1]
local CLOSED, CLAIMED = 0, 1

if redis.call('HLEN', turn) > 1 then return {CLAIMED} end
redis.call('HSET', turn, 'state', 'closed')
redis.call('PEXPIRE', turn, keep_ms)
return {CLOSED}
