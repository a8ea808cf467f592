#!lua flags=allow-oom
--[[
fold_state: move one part of the attempt that is named for a task to the task's values. Behind the last part the attempt is deleted.
Fields whose names begin with a zero byte are pieces of long values. Their number is noted, because they are no keys.
If another attempt is named, or this one is folded, nothing is left to do.

KEYS
  state     HASH  acker:{app}:state:<topology>
  values    HASH  acker:{app}:state_values:<topology>:<component>:<index>
  attempt   HASH  acker:{app}:state_attempt:<topology>:<component>:<index>:<id>
  attempts  SET   acker:{app}:state_attempts:<topology>:<component>:<index>
ARGV
  epoch  epoch of the run
  task   component and index
  id     id of the attempt
Returns
  status  OPEN 0, STALE 1: a newer run has begun, LOST 2: the server lost its last writes, or the attempt
  left    number of parts that are left
]]
--- @include "lib/bytes"
--- @include "lib/state"
local state, values, attempt, attempts = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local epoch, task, id = ARGV[1], ARGV[2], ARGV[3]

local found = redis.call('HMGET', state, 'epoch', 'task:' .. task)
local status = epoch_status(found[1], epoch)
if status ~= OPEN then return {status, 0} end
if found[2] ~= 'u' .. id then return {OPEN, 0} end
local has = redis.call('HMGET', attempt, 'parts', 'folded')
local parts, part = tonumber(has[1] or 0), tonumber(has[2] or 0)
local data = redis.call('HGET', attempt, part)
if not data then return {LOST, 0} end
local fields, pieces, at = {set = {}, gone = {}}, {set = {}, gone = {}}, 1
while at <= #data do
  local length, from = unpack_bytes('>I4', data, at)
  local name = string.sub(data, from, from + length - 1)
  local to = string.byte(name) == 0 and pieces or fields
  length, from = unpack_bytes('>I4', data, from + length)
  if length > 0 then
    to.set[#to.set + 1] = name
    to.set[#to.set + 1] = string.sub(data, from, from + length - 1)
  else
    to.gone[#to.gone + 1] = name
  end
  at = from + length
end
-- Move fields to the values. Returns by how many there are more.
local function move(to)
  local more = #to.set > 0 and redis.call('HSET', values, unpack(to.set)) or 0
  return more - (#to.gone > 0 and redis.call('HDEL', values, unpack(to.gone)) or 0)
end
move(fields)
local more = move(pieces)
if more ~= 0 then redis.call('HINCRBY', state, 'pieces:' .. task, more) end
redis.call('HSET', state, 'keys:' .. task, redis.call('HLEN', values))
if part + 1 < parts then
  redis.call('HDEL', attempt, part)
  redis.call('HSET', attempt, 'folded', part + 1)
else
  redis.call('DEL', attempt)
  redis.call('SREM', attempts, id)
  redis.call('HSET', state, 'task:' .. task, 'f' .. id)
end
return {OPEN, parts - part - 1}
