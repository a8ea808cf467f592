#!lua flags=allow-oom
--[[
confirm: the spout has acted on these stream entries; acknowledge and trim them in one step, so that neither a leaked
entry nor a dangling acknowledgement can remain.

KEYS
  meta      HASH    acker:{app:shard}:meta
  outcomes  STREAM  acker:{app:shard}:acked:<lane> acker:{app:shard}:failed:<lane>
ARGV
  generation  marker the client read when it opened the shard
  ids*        stream entry ids, 1000 at most
Returns
  confirmed  entries removed by this call
Errors
  ACKERLOST
]]
--- @include "lib/shard"
local meta, outcomes = KEYS[1], KEYS[2]
local generation = ARGV[1]

if not open_shard(meta, generation) then return lost() end
redis.call('XACK', outcomes, 'spout', unpack(ARGV, 2))
return {redis.call('XDEL', outcomes, unpack(ARGV, 2))}
