#!lua flags=allow-oom
--[[
check_state: compare a task's state with what its last fold left. If fields or the named attempt are gone, what is left becomes the
state from then on.

KEYS
  state    HASH  acker:{app}:state:<topology>
  sizes    HASH  acker:{app}:state_sizes
  values   HASH  acker:{app}:state_values:<topology>:<component>:<index>
  attempt  HASH  acker:{app}:state_attempt:<topology>:<component>:<index>:<id>
ARGV
  epoch     epoch of the run
  topology  name of the topology, as its keys spell it
  task      component and index
  id        id of the attempt that is named for the task
Returns
  status  OPEN 0: all of it is there, STALE 1: a newer run has begun, LOST 2: the server lost a part of it
  keys    number of fields that the last fold left
  found   number of fields that are there
]]
--- @include "lib/state"
local state, sizes, values, attempt = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local epoch, topology, task, id = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

local stored = redis.call('HMGET', state, 'epoch', 'task:' .. task, 'keys:' .. task)
local status = epoch_status(stored[1], epoch)
local found = redis.call('HLEN', values)
local keys = tonumber(stored[3] or found)
if status ~= OPEN then return {status, keys, found} end
if stored[2] == 'u' .. id and redis.call('EXISTS', attempt) == 0 then
  redis.call('HSET', state, 'task:' .. task, 'f')
  status = LOST
end
if keys > found then
  redis.call('HSET', state, 'keys:' .. task, found)
  status = LOST
end
if status == LOST and found == 0 then
  forget_sizes(sizes, topology, {task})
  redis.call('HDEL', state, 'pieces:' .. task)
end
return {status, keys, found}
