-- dedup window: has this update batch been applied before? A idempotency key lives in the ring beside the buckets for at least one
-- message timeout. Beside it stands idempotency key..digest, so that an idempotency key used again for other content is told apart.
local APPLIED, SEEN, REUSED = 0, 1, 2

local function dedup_status(first, slots, idempotency_key, digest)
  for slot = 0, slots - 1 do
    local dedup = KEYS[first + slot]
    if redis.call('SISMEMBER', dedup, idempotency_key) == 1 then
      return redis.call('SISMEMBER', dedup, idempotency_key .. digest) == 1 and SEEN or REUSED
    end
  end
  return APPLIED
end
