#!lua flags=no-writes
--[[
load_state: read which attempt the state of a task stems from, and which attempts of the task there are. A turn that is over is refused.

KEYS
  state     HASH  acker:{app}:state:<topology>
  attempts  SET   acker:{app}:state_attempts:<topology>:<component>:<index>
ARGV
  epoch  epoch of the run
  turn   number of the turn
  task   component and index
Returns
  status  OPEN 0, STALE 1: a newer run has begun, LOST 2: the server lost its last writes, DECIDED 3: the turn is over
  entry   u (not folded yet) or f (folded), and the attempt; empty if there is none
  ids*    attempts of the task
]]
--- @include "lib/state"
local state, attempts = KEYS[1], KEYS[2]
local epoch, turn, task = ARGV[1], ARGV[2], ARGV[3]

local status = turn_status(state, epoch, turn)
if status ~= OPEN then return {status, ''} end
return {status, redis.call('HGET', state, 'task:' .. task) or '', unpack(redis.call('SMEMBERS', attempts))}
