#!lua flags=allow-oom
--[[
end_state: end a run of a topology with state. It is the last write of a run: if it is there, all writes before it are.

KEYS
  state  HASH  acker:{app}:state:<topology>
ARGV
  epoch  epoch of the run
  turn   last turn that the run has decided
Returns
  status  OPEN 0: it has ended, STALE 1: a newer run has begun, and nothing was changed, LOST 2: the server lost the last turns
]]
--- @include "lib/state"
local state = KEYS[1]
local epoch, turn = ARGV[1], ARGV[2]

local found = redis.call('HMGET', state, 'epoch', 'turn')
local status = epoch_status(found[1], epoch)
if status == STALE then return {status} end
redis.call('HDEL', state, 'server')
if status == OPEN and tonumber(found[2]) < tonumber(turn) then return {LOST} end
return {status}
