#!lua flags=allow-oom
--[[
confirm: acknowledge and trim stream entries that the spout has acted on. One step does both, so that neither a leaked entry
nor a dangling acknowledgement can remain.

KEYS
  meta      HASH    acker:{app:shard}:meta
  outcomes  STREAM  acker:{app:shard}:acked:<lane> acker:{app:shard}:failed:<lane>
ARGV
  generation  marker that the client read when it opened the shard
  ids         at most 1000 stream entry ids, oldest first, separated by spaces (one argument each would cost more)
Returns
  confirmed  number of entries removed by this call
Errors
  ACKERLOST
]]
--- @include "lib/shard"
local meta, outcomes = KEYS[1], KEYS[2]
local generation, ids = ARGV[1], ARGV[2]

if not open_shard(meta, generation) then return lost() end
-- Trimming a stream from its head costs a tenth of deleting its entries one by one. If all ids were pending, this group has
-- delivered everything before them too. An earlier entry that is no longer pending was therefore confirmed.
local entries, removed = {}, 0
for id in string.gmatch(ids, '%S+') do entries[#entries + 1] = id end
local newest = entries[#entries]
if redis.call('XACK', outcomes, 'spout', unpack(entries)) == #entries then
  local oldest = redis.call('XPENDING', outcomes, 'spout', '-', newest, 1)[1]
  removed = redis.call('XTRIM', outcomes, 'MINID', oldest and oldest[1] or newest) + redis.call('XDEL', outcomes, newest)
end
if removed < #entries then removed = removed + redis.call('XDEL', outcomes, unpack(entries)) end
return {removed}
