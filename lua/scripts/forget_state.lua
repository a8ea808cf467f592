#!lua flags=allow-oom
--[[
forget_state: delete what is kept of some tasks, in one step, because no run needs it any more. The state of all others stays.
A bolt's shape is deleted with its tasks. Otherwise a deletion that breaks off would leave values that a run with other tasks accepts.

KEYS
  state     HASH   acker:{app}:state:<topology>
  sizes     HASH   acker:{app}:state_sizes
  values    HASH*  acker:{app}:state_values:<topology>:<component>:<index>
  attempts  SET*   acker:{app}:state_attempts:<topology>:<component>:<index>
  attempt   HASH*  acker:{app}:state_attempt:<topology>:<component>:<index>:<id>
ARGV
  epoch     epoch of the run
  topology  name of the topology, as its keys spell it
  bolt      bolt whose shape is deleted, too; empty if none is
  tasks*    component and index of each task
Returns
  status  OPEN 0: they are gone, STALE 1: a newer run has begun, LOST 2: the server lost its last writes. Only OPEN has written
]]
--- @include "lib/state"
local state, sizes = KEYS[1], KEYS[2]
local epoch, topology, bolt = ARGV[1], ARGV[2], ARGV[3]

local status = epoch_status(redis.call('HGET', state, 'epoch'), epoch)
if status ~= OPEN then return {status} end
for i = 3, #KEYS do redis.call('UNLINK', KEYS[i]) end
local tasks = {unpack(ARGV, 4)}
forget_sizes(sizes, topology, tasks)
for _, task in ipairs(tasks) do redis.call('HDEL', state, 'task:' .. task, 'keys:' .. task, 'pieces:' .. task) end
if bolt ~= '' then redis.call('HDEL', state, 'shape:' .. bolt) end
return {OPEN}
