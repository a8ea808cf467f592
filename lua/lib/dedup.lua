-- dedup: checks whether a batch was applied before. An idempotency key stays in the dedup window, a ring of sets next to the
-- buckets, for at least one message timeout. The key followed by the digest is a second member, which shows whether a repeated
-- key has the same content.
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
