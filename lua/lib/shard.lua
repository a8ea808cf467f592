-- shard: reads one shard's ring position and settings in one call, and the server's clock.
-- Returns nil if the generation is not the one that the client opened. The shard then lost its data (FLUSHALL, a restart
-- without persistence), or was never opened.
local function open_shard(meta, generation)
  local fields = redis.call('HMGET', meta, 'generation', 'tick', 'num_buckets', 'lanes', 'clock', 'max_age_ms', 'max_pending')
  if fields[1] ~= generation then return nil end
  local time = redis.call('TIME')
  local tick, num_buckets = tonumber(fields[2]), tonumber(fields[3])
  return {
    now = time[1] * 1000 + math.floor(time[2] / 1000),
    tick = tick,
    stamp = tick % 65536,
    num_buckets = num_buckets,
    slots = num_buckets + 1,
    nursery = tick % (num_buckets + 1),
    lanes = tonumber(fields[4]),
    last_update = fields[5] == 'last_update',
    max_age_ms = tonumber(fields[6]),
    max_pending = tonumber(fields[7]),
  }
end

-- An age is never negative, even if the server's clock was set back or a replica with another clock took over. It fits the
-- four bytes that an outcome has for it.
local function age_between(start, now)
  return math.max(0, math.min(now - start, 4294967295))
end

-- Return true if a block that began at `start` may still get a new timeout.
local function is_young(shard, start)
  return shard.max_age_ms == 0 or shard.now - start < shard.max_age_ms
end

local function lost()
  return redis.error_reply('ACKERLOST the shard does not hold the generation this client opened')
end
