#!lua
--[[
write_state: write a part of an attempt's changes to the state of a task. Parts come in order. A part that is there stays as it is.
Nothing counts before the turn's commit names the attempt, and an attempt that isn't named expires.

KEYS
  state     HASH  acker:{app}:state:<topology>
  sizes     HASH  acker:{app}:state_sizes
  attempt   HASH  acker:{app}:state_attempt:<topology>:<component>:<index>:<id>
  attempts  SET   acker:{app}:state_attempts:<topology>:<component>:<index>
ARGV
  epoch    epoch of the run
  turn     number of the turn
  task     component and index
  id       id of the attempt
  part     number of the part, from 0
  keep_ms  time until the attempt expires
  growth   bytes by which all of the attempt lets the task's state grow
  limited  1: the app's limit counts, 0: it doesn't, because other tasks of the turn shrink by as much
  data     changes: length 4 and field, length 4 and value, for at most 250 fields. A value without bytes deletes the field
Returns
  status  OPEN 0, STALE 1: a newer run has begun, LOST 2: the server lost its last writes, DECIDED 3: the turn is over, UNFOLDED 4:
          an earlier attempt is not folded yet, EXPIRED 5: an earlier part is gone, FULL 6: the state would exceed the app's limit.
          Only OPEN has written
]]
--- @include "lib/state"
local state, sizes, attempt, attempts = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local epoch, turn, task, id, part, keep_ms, growth, limited, data = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7], ARGV[8], ARGV[9]

local status = turn_status(state, epoch, turn)
if status ~= OPEN then return {status} end
if is_unfolded(redis.call('HGET', state, 'task:' .. task)) then return {UNFOLDED} end
local parts = tonumber(redis.call('HGET', attempt, 'parts') or 0)
if parts > tonumber(part) then return {OPEN} end
if parts < tonumber(part) then return {EXPIRED} end
if limited == '1' and is_over_limit(sizes, tonumber(growth)) then return {FULL} end
redis.call('HSET', attempt, 'parts', parts + 1, 'growth', growth, part, data)
redis.call('PEXPIRE', attempt, keep_ms)
redis.call('SADD', attempts, id)
redis.call('PEXPIRE', attempts, keep_ms)
return {OPEN}
