-- state: the check that all scripts of a topology's state begin with.
-- A turn is open while it is the one behind the last decided turn, and no newer run has begun.
local OPEN, STALE, LOST, DECIDED, UNFOLDED, EXPIRED, FULL = 0, 1, 2, 3, 4, 5, 6

local function epoch_status(stored, epoch)
  local found = tonumber(stored or 0)
  if found == tonumber(epoch) then return OPEN end
  if found > tonumber(epoch) then return STALE end
  return LOST
end

local function turn_status(map, epoch, turn)
  local found = redis.call('HMGET', map, 'epoch', 'turn')
  local status = epoch_status(found[1], epoch)
  if status ~= OPEN then return status end
  local decided = tonumber(found[2])
  if decided >= tonumber(turn) then return DECIDED end
  if decided + 1 < tonumber(turn) then return LOST end
  return OPEN
end

-- Return true if a growth of the state by so many bytes would exceed the app's limit. A state that shrinks is never refused.
local function is_over_limit(sizes, growth)
  local found = redis.call('HMGET', sizes, 'limit', 'total')
  return growth > 0 and found[1] and tonumber(found[2] or 0) + growth > tonumber(found[1])
end

-- Take the sizes of tasks out of the hash of all sizes.
local function forget_sizes(sizes, topology, tasks)
  for _, task in ipairs(tasks) do
    local field = topology .. ':' .. task
    redis.call('HINCRBY', sizes, 'total', 0 - tonumber(redis.call('HGET', sizes, field) or 0))
    redis.call('HDEL', sizes, field)
  end
end

local function is_unfolded(entry)
  return entry and string.sub(entry, 1, 1) == 'u'
end
