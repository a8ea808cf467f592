-- fence: has this update batch been applied before? A token lives in the ring beside the buckets for at least one
-- message timeout. Beside it stands token..digest, so that a token used again for other content is told apart.
local APPLIED, SEEN, REUSED = 0, 1, 2

local function fence_status(first, slots, token, digest)
  for slot = 0, slots - 1 do
    local fence = KEYS[first + slot]
    if redis.call('SISMEMBER', fence, token) == 1 then
      return redis.call('SISMEMBER', fence, token .. digest) == 1 and SEEN or REUSED
    end
  end
  return APPLIED
end
