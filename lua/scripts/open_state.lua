#!lua flags=allow-oom
--[[
open_state: begin a run of a topology with state. The epoch rises, and no write, commit or fold of an older one is accepted any more.
State of another shape is refused. If the run before has not ended, and the server is another one, its last writes may be lost. Only
end_state removes the suspicion.

KEYS
  state  HASH  acker:{app}:state:<topology>
ARGV
  server   id of the server's process; empty if it isn't known
  shapes*  name of each bolt with state, and the shape of its state: number of tasks, groupings and formula
Returns
  status  OPENED 0, OTHER_SHAPE 1: nothing was changed, SUSPECT 2: opened, but the last writes of the run before may be lost
  epoch   the new epoch
  other*  OTHER_SHAPE: a bolt whose state has another shape, and that shape. SUSPECT: epoch and last known turn of the run before
]]
local state = KEYS[1]
local server = ARGV[1]
local OPENED, OTHER_SHAPE, SUSPECT = 0, 1, 2

local shapes = {unpack(ARGV, 2)}
for i = 1, #shapes, 2 do
  local stored = redis.call('HGET', state, 'shape:' .. shapes[i])
  if stored and stored ~= shapes[i + 1] then return {OTHER_SHAPE, 0, shapes[i], stored} end
end
local before = redis.call('HMGET', state, 'server', 'turn')
local is_suspect = (before[1] or '') ~= '' and server ~= '' and before[1] ~= server
local epoch = redis.call('HINCRBY', state, 'epoch', 1)
redis.call('HSET', state, 'turn', 0, 'decision', '', 'server', is_suspect and before[1] or server)
for i = 1, #shapes, 2 do redis.call('HSET', state, 'shape:' .. shapes[i], shapes[i + 1]) end
if is_suspect then return {SUSPECT, epoch, tostring(epoch - 1), before[2]} end
return {OPENED, epoch}
