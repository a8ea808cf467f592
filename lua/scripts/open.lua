#!lua flags=allow-oom
--[[
open: create one shard of an app if it is missing, and return its generation marker.
A shard without marker is new, or lost its data. It gets the marker that the client drew. Clients that opened the shard before
learn of the loss from their next call (ACKERLOST). If only the marker was lost, all other data of the shard is removed too:
blocks, cohorts and dedup windows of a ring with unknown position would never expire. Outcomes are removed as well. No message
is lost by that, because a client that learns of the loss emits every message without outcome again, with new roots.

KEYS
  meta    HASH     acker:{app:shard}:meta
  ledger  HASH     acker:{app:shard}:ledger
  stats   HASH     acker:{app:shard}:stats
  samples HASH     acker:{app:shard}:samples
  latency HASH     acker:{app:shard}:latency
  bucket  ZSET*    acker:{app:shard}:bucket:<slot>
  dedup   SET*     acker:{app:shard}:dedup:<slot>
  acked   STREAM*  acker:{app:shard}:acked:<lane>
  failed  STREAM*  acker:{app:shard}:failed:<lane>
ARGV
  generation   marker for the shard if it has none
  num_buckets  number of rotating buckets, >= 2
  lanes        number of outcome lanes
  clock        first_seen or last_update
  max_age_ms   age limit of roots, 0 for none
  tick_ms      time between two ticks, in ms
  shards       number of shards of the app
  format       version of the ledger's layout that the client supports
  max_pending  part of the limit of pending roots for a new shard, empty for no limit
Returns
  status       OPENED 0, CREATED 1, CONFLICT 2: the shard was created with other settings, OTHER_FORMAT 3: it has another
               format. Nothing was changed
  generation   marker of the shard. With OTHER_FORMAT its format instead, empty for none
Errors
  NOPERM
]]
local meta, ledger, stats, samples, latency = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local generation, num_buckets, lanes, clock, max_age_ms, tick_ms, shards, format, max_pending = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7], ARGV[8], ARGV[9]
local OPENED, CREATED, CONFLICT, OTHER_FORMAT = 0, 1, 2, 3
local slots = num_buckets + 1
local acked = 6 + slots + slots

-- A forbidden command would stop a later script half-way, after its first writes. Redis 7 can check permissions in advance.
if redis.acl_check_cmd then
  for _, command in ipairs({'HGET', 'HMGET', 'HSET', 'HDEL', 'HINCRBY', 'HSCAN', 'HLEN', 'SISMEMBER', 'SADD', 'ZADD', 'ZRANGE',
    'ZREM', 'ZCARD', 'UNLINK', 'SET', 'BITOP', 'GET', 'DEL', 'XADD', 'XACK', 'XPENDING', 'XTRIM', 'XDEL'}) do
    if not redis.acl_check_cmd(command, meta) then
      return redis.error_reply('NOPERM this user may not run ' .. command .. ' on ' .. meta)
    end
  end
  if not redis.acl_check_cmd('XGROUP', 'CREATE', KEYS[acked], 'spout', '0', 'MKSTREAM') then
    return redis.error_reply('NOPERM this user may not run XGROUP CREATE on ' .. KEYS[acked])
  end
end

local status = OPENED
local stored = redis.call('HMGET', meta, 'generation', 'num_buckets', 'lanes', 'clock', 'max_age_ms', 'tick_ms', 'shards', 'format')
local current = stored[1]
if current then
  if stored[8] ~= format then return {OTHER_FORMAT, stored[8] or ''} end
  for i, setting in ipairs({num_buckets, lanes, clock, max_age_ms, tick_ms, shards}) do
    if stored[i + 1] ~= setting then return {CONFLICT, current} end
  end
else
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  redis.call('UNLINK', ledger, stats, samples, latency)
  for i = 6, #KEYS do redis.call('UNLINK', KEYS[i]) end
  redis.call('HSET', meta, 'generation', generation, 'tick', 0, 'num_buckets', num_buckets, 'lanes', lanes,
    'clock', clock, 'max_age_ms', max_age_ms, 'tick_ms', tick_ms, 'shards', shards, 'format', format, 'created_ms', now, 'last_rotation_ms', now,
    'next_rotation_ms', now + tick_ms)
  if max_pending ~= '' then redis.call('HSET', meta, 'max_pending', max_pending) end
  status, current = CREATED, generation
end
for lane = 0, 2 * lanes - 1 do
  local made = redis.pcall('XGROUP', 'CREATE', KEYS[acked + lane], 'spout', '0', 'MKSTREAM') -- those of failed are next
  -- An existing group is no error. For a user who may not create it, a missing group would look like lost data.
  if made.err and not string.find(tostring(made.err), 'BUSYGROUP', 1, true) then return made end
end
return {status, current}
