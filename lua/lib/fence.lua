-- fence: has this update batch been applied before? A token lives in the ring beside the buckets for at least one
-- message timeout. Beside each token stands token..digest, so that a token used again for other content is told apart.
local APPLIED, SEEN, REUSED = 0, 1, 2

-- Returns APPLIED where the batch is new and may be applied, SEEN, or REUSED where the token came with other content.
local function fence_status(first, slots, token, digest)
  for slot = 0, slots - 1 do
    local fence = KEYS[first + slot]
    if redis.call('SISMEMBER', fence, token) == 1 then
      if redis.call('SISMEMBER', fence, token .. digest) == 1 then return SEEN end
      return REUSED
    end
  end
  return APPLIED
end
