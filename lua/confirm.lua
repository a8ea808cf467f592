#!lua flags=allow-oom
--[[
confirm: the spout has acted on these stream entries; acknowledge and trim them in one step, so that neither a leaked
entry nor a dangling acknowledgement can remain.

KEYS
  outcomes  STREAM  acker:{app:shard}:acked:<lane> acker:{app:shard}:failed:<lane>
ARGV
  ids*      stream entry ids, 1000 at most
Returns
  confirmed  entries removed by this call
]]
local outcomes = KEYS[1]
redis.call('XACK', outcomes, 'spout', unpack(ARGV))
return {redis.call('XDEL', outcomes, unpack(ARGV))}
