#!lua flags=no-writes
--[[
read_state: read fields of a task's state, until the values have so many bytes. The first one is always read. A turn that is over is
refused.

KEYS
  state   HASH  acker:{app}:state:<topology>
  values  HASH  acker:{app}:state_values:<topology>:<component>:<index>
ARGV
  epoch      epoch of the run
  turn       number of the turn
  max_bytes  bytes at which to end
  fields*    fields, at most 250
Returns
  status   OPEN 0, STALE 1: a newer run has begun, LOST 2: the server lost its last writes, DECIDED 3: the turn is over
  values*  values of the first fields, empty for a field that isn't there
]]
--- @include "lib/state"
local state, values = KEYS[1], KEYS[2]
local epoch, turn, max_bytes = ARGV[1], ARGV[2], ARGV[3]

local status = turn_status(state, epoch, turn)
if status ~= OPEN then return {status} end
local reply, left = {status}, tonumber(max_bytes)
for i, name in ipairs({unpack(ARGV, 4)}) do
  local value = redis.call('HGET', values, name) or ''
  left = left - #value
  if left < 0 and i > 1 then break end
  reply[i + 1] = value
end
return reply
