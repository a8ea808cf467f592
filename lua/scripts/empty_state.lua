#!lua flags=allow-oom
--[[
empty_state: delete all state of a topology in one step. Its epoch stays and rises, so that no write of an earlier run is accepted.

KEYS
  state     HASH   acker:{app}:state:<topology>
  sizes     HASH   acker:{app}:state_sizes
  values    HASH*  acker:{app}:state_values:<topology>:<component>:<index>
  attempts  SET*   acker:{app}:state_attempts:<topology>:<component>:<index>
  attempt   HASH*  acker:{app}:state_attempt:<topology>:<component>:<index>:<id>
ARGV
  epoch     epoch of the state that is deleted
  topology  name of the topology, as its keys spell it
  tasks*    component and index of each task
Returns
  status  OPEN 0: it is empty, STALE 1: a run has begun since, LOST 2: the server lost its last writes. Only OPEN has written
]]
--- @include "lib/state"
local state, sizes = KEYS[1], KEYS[2]
local epoch, topology = ARGV[1], ARGV[2]

local status = epoch_status(redis.call('HGET', state, 'epoch'), epoch)
if status ~= OPEN then return {status} end
for i = 3, #KEYS do redis.call('UNLINK', KEYS[i]) end
forget_sizes(sizes, topology, {unpack(ARGV, 3)})
redis.call('DEL', state)
redis.call('HSET', state, 'epoch', tonumber(epoch) + 1, 'turn', 0, 'decision', '')
return {OPEN}
