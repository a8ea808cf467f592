-- keyed: checks whether acks with a key each were applied before. A key belongs to its root. Root and key together, 16 bytes, are
-- a member of the dedup window. Idempotency keys and their digests have other lengths.
--- @include "lib/block"
--- @include "lib/dedup"
local PARTLY = 4
local KEYED_BYTES = 24

-- The members of all acks, and which of them are in the window: number of the ack -> true.
local function members_of(first, slots, keyed)
  local members, seen = {}, {}
  for i = 1, #keyed / KEYED_BYTES do
    members[i] = sub(keyed, (i - 1) * KEYED_BYTES + 1, i * KEYED_BYTES - 8)
  end
  for slot = 0, slots - 1 do
    local found = redis.call('SMISMEMBER', KEYS[first + slot], unpack(members))
    for i = 1, #found do
      if found[i] == 1 then seen[i] = true end
    end
  end
  return members, seen
end

-- XOR the acks that weren't seen, and lay them out as the updates of a call.
local function unseen_updates(keyed, seen)
  local blocks, numbers, parts = {}, {}, {}
  for i = 1, #keyed / KEYED_BYTES do
    if not seen[i] then
      local at = (i - 1) * KEYED_BYTES + 1
      local top = byte(keyed, at)
      local number = char(top % 8) .. sub(keyed, at + 1, at + 7)
      local slot, hi, lo = (top - top % 8) / 8, unpack_bytes('>i4i4', keyed, at + 16)
      local block = blocks[number]
      if not block then
        block = {mask = 0, his = {}, los = {}}
        blocks[number], numbers[#numbers + 1] = block, number
      end
      block.mask = bor(block.mask, BIT[slot])
      block.his[slot], block.los[slot] = bxor(block.his[slot] or 0, hi), bxor(block.los[slot] or 0, lo)
    end
  end
  for _, number in ipairs(numbers) do
    local block = blocks[number]
    parts[#parts + 1] = number .. pack_bytes('>i4', block.mask)
    for _, slot in ipairs(slots_of(block.mask)) do
      parts[#parts + 1] = pack_bytes('>i4i4', block.his[slot], block.los[slot])
    end
  end
  return concat(parts)
end

-- The status of a call, the members to add to the window, the number of acks to skip, and the updates of the others.
local function keyed_status(first, slots, keyed, updates)
  local members, seen = members_of(first, slots, keyed)
  if next(seen) == nil then return APPLIED, members, 0, updates end
  local fresh = {}
  for i = 1, #members do
    if not seen[i] then fresh[#fresh + 1] = members[i] end
  end
  if #fresh == 0 then return SEEN, fresh, #members, '' end
  return PARTLY, fresh, #members - #fresh, unseen_updates(keyed, seen)
end
