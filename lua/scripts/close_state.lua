#!lua flags=allow-oom
--[[
close_state: end a turn without a commit, so that a commit that wakes up late changes nothing. Compare and set: a committed turn stays
committed.

KEYS
  state  HASH  acker:{app}:state:<topology>
ARGV
  epoch  epoch of the run
  turn   number of the turn
Returns
  status  OPEN 0: it is closed, STALE 1: a newer run has begun, LOST 2: the server lost its last writes, DECIDED 3: it was committed
]]
--- @include "lib/state"
local state = KEYS[1]
local epoch, turn = ARGV[1], ARGV[2]

local status = turn_status(state, epoch, turn)
if status == DECIDED then
  local found = redis.call('HMGET', state, 'turn', 'decision')
  if tonumber(found[1]) == tonumber(turn) and found[2] == 'closed' then return {OPEN} end
end
if status ~= OPEN then return {status} end
redis.call('HSET', state, 'turn', turn, 'decision', 'closed')
return {OPEN}
