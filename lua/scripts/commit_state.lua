#!lua flags=allow-oom
--[[
commit_state: name the attempts whose changes are a turn's. Compare and set: the turn before must be decided, and this one not, unless
by a commit of the same attempts.

KEYS
  state    HASH   acker:{app}:state:<topology>
  sizes    HASH   acker:{app}:state_sizes
  attempt  HASH*  acker:{app}:state_attempt:<topology>:<component>:<index>:<id>
ARGV
  epoch     epoch of the run
  turn      number of the turn
  digest    hash of the named attempts
  topology  name of the topology, as its keys spell it
  entries*  component and index, id and number of parts of each attempt, at most 250
Returns
  status  OPEN 0: they are committed, STALE 1: a newer run has begun, LOST 2: the server lost its last writes, DECIDED 3: the turn is
          closed, or has other attempts, UNFOLDED 4: an earlier attempt is not folded yet, EXPIRED 5: a part is gone,
          FULL 6: the state would exceed the app's limit. Only OPEN has written
]]
--- @include "lib/state"
local state, sizes = KEYS[1], KEYS[2]
local epoch, turn, digest, topology = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

local status = turn_status(state, epoch, turn)
if status == DECIDED then
  local found = redis.call('HMGET', state, 'turn', 'decision')
  if tonumber(found[1]) == tonumber(turn) and found[2] == 'c' .. digest then return {OPEN} end
end
if status ~= OPEN then return {status} end
local attempt = 3
local entries, growths, growth = {unpack(ARGV, 5)}, {}, 0
for i = 0, #entries / 3 - 1 do
  if is_unfolded(redis.call('HGET', state, 'task:' .. entries[3 * i + 1])) then return {UNFOLDED} end
  local found = redis.call('HMGET', KEYS[attempt + i], 'parts', 'growth')
  if found[1] ~= entries[3 * i + 3] then return {EXPIRED} end
  growths[i] = tonumber(found[2] or 0)
  growth = growth + growths[i]
end
if is_over_limit(sizes, growth) then return {FULL} end
for i = 0, #entries / 3 - 1 do
  redis.call('PERSIST', KEYS[attempt + i])
  redis.call('HSET', state, 'task:' .. entries[3 * i + 1], 'u' .. entries[3 * i + 2])
  redis.call('HINCRBY', sizes, topology .. ':' .. entries[3 * i + 1], growths[i])
end
redis.call('HINCRBY', sizes, 'total', growth)
redis.call('HSET', state, 'turn', turn, 'decision', 'c' .. digest)
return {OPEN}
