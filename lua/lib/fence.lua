-- fence: has this update batch been applied before? A token lives in the ring beside the buckets for at least one
-- message timeout. Beside each token stands token..digest, so that a token used again for other content is told apart.
-- A call may fold several parts into one value per root; then it brings a token and a digest for each of them.
local APPLIED, SEEN, REUSED, PARTLY = 0, 1, 2, 3
local DIGEST = 8

local function fence_members(tokens, digests)
  local count = #digests / DIGEST
  local width, members = #tokens / count, {}
  for i = 1, count do
    local token = string.sub(tokens, (i - 1) * width + 1, i * width)
    members[2 * i - 1] = token
    members[2 * i] = token .. string.sub(digests, (i - 1) * DIGEST + 1, i * DIGEST)
  end
  return members
end

-- Returns APPLIED where all parts are new and may be applied, SEEN where none is, PARTLY where some are, or REUSED where a
-- token came with other content.
local function fence_status(first, slots, members)
  local seen = 0
  for i = 1, #members, 2 do
    for slot = 0, slots - 1 do
      local fence = KEYS[first + slot]
      if redis.call('SISMEMBER', fence, members[i]) == 1 then
        if redis.call('SISMEMBER', fence, members[i + 1]) == 0 then return REUSED end
        seen = seen + 1
        break
      end
    end
  end
  if seen == 0 then return APPLIED end
  return 2 * seen == #members and SEEN or PARTLY
end
