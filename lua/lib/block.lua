-- block: reads and writes blocks, which pack up to 32 roots. A root's top five bits are its slot, the other 59 the number of
-- its block. A field of the ledger is a block number, 8 bytes; its value is the block. A mask has one bit per slot. A block has
-- one of two forms, which differ in length:
--   alone, 22 bytes, for one root: value 8, last component 1, state + 4 * slot 1, tick stamp 2, spout_id 4, start ms 6
--   shared, 24 + 9 n bytes: tick stamp 2, spout_id 4, start ms 6, masks 4 each: unsettled, owned, failed;
--     then, in the order of the n present slots, the values 8 each, and the last components 1 each
-- Only an owned root settles. A closed root has failed and its outcome is written. It stays until its block expires, so that
-- its later updates count as late. A settled root was acked. It stays as long as the block.
--- @include "lib/bytes"
local sub, byte, char, rep, find, concat = string.sub, string.byte, string.char, string.rep, string.find, table.concat
local WAITING, OWNED, FAILED, CLOSED = 0, 1, 2, 3
local ALONE_BYTES, HEAD_BYTES = 22, 24
local ZERO_VALUE, ZEROS = rep('\0', 8), rep('\0', 320)

-- The bit of each slot in a mask. For masks of one bit, the slot's part of an alone block's flags.
-- Written out, because every call runs these lines, and a loop was a third of a call's fixed cost.
local BIT = {
  [0] = 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072, 262144, 524288,
  1048576, 2097152, 4194304, 8388608, 16777216, 33554432, 67108864, 134217728, 268435456, 536870912, 1073741824,
  -2147483648,
}
local SLOT_FLAGS = {
  [1] = 0, [2] = 4, [4] = 8, [8] = 12, [16] = 16, [32] = 20, [64] = 24, [128] = 28, [256] = 32, [512] = 36, [1024] = 40,
  [2048] = 44, [4096] = 48, [8192] = 52, [16384] = 56, [32768] = 60, [65536] = 64, [131072] = 68, [262144] = 72,
  [524288] = 76, [1048576] = 80, [2097152] = 84, [4194304] = 88, [8388608] = 92, [16777216] = 96, [33554432] = 100,
  [67108864] = 104, [134217728] = 108, [268435456] = 112, [536870912] = 116, [1073741824] = 120, [-2147483648] = 124,
}

local function without(mask, other)
  return mask - band(mask, other)
end

-- The places of the bits set in a byte, lowest first. Computed at first use.
local places_by_byte = {[0] = {}}
local function bits_set_in(value)
  local places, rest = {}, value
  for place = 0, 7 do
    if rest % 2 == 1 then places[#places + 1] = place end
    rest = (rest - rest % 2) / 2
  end
  places_by_byte[value] = places
  return places
end

local function count_of(mask)
  local rest, count = mask % 4294967296, 0
  while rest > 0 do
    local low = rest % 256
    count = count + #(places_by_byte[low] or bits_set_in(low))
    rest = (rest - low) / 256
  end
  return count
end

-- The slots of a mask, lowest first, and the place of each. Cached, because neighbouring blocks often have equal masks.
local slots_by_mask, places_by_mask = {}, {}
local function slots_of(mask)
  local slots = slots_by_mask[mask]
  if not slots then
    slots = {}
    local rest, first, n = mask % 4294967296, 0, 0
    while rest > 0 do
      local low = rest % 256
      if low > 0 then
        local places = places_by_byte[low] or bits_set_in(low)
        for i = 1, #places do slots[n + i] = first + places[i] end
        n = n + #places
      end
      rest, first = (rest - low) / 256, first + 8
    end
    slots_by_mask[mask] = slots
  end
  return slots
end

local function places_of(mask)
  local places = places_by_mask[mask]
  if not places then
    places = {}
    for i, slot in ipairs(slots_of(mask)) do places[slot] = i end
    places_by_mask[mask] = places
  end
  return places
end

-- The columns of the slots of `mask`, laid out for the slots of `wider`, with zeros for the added slots.
local function spread(columns, mask, wider, width)
  if mask == wider then return columns end
  local places, parts, filled = places_of(wider), {}, 0
  for i, slot in ipairs(slots_of(mask)) do
    local place = places[slot]
    if place - 1 > filled then parts[#parts + 1] = sub(ZEROS, 1, (place - 1 - filled) * width) end
    parts[#parts + 1] = sub(columns, (i - 1) * width + 1, i * width)
    filled = place
  end
  local left = count_of(wider) - filled
  if left > 0 then parts[#parts + 1] = sub(ZEROS, 1, left * width) end
  return concat(parts)
end

-- The columns of the slots of `fewer`, picked from those of `mask`.
local function picked(columns, mask, fewer, width)
  if mask == fewer then return columns end
  local places, parts = places_of(mask), {}
  for i, slot in ipairs(slots_of(fewer)) do
    local place = places[slot]
    parts[i] = sub(columns, (place - 1) * width + 1, place * width)
  end
  return concat(parts)
end

-- One-byte columns, with this byte written to the slots of `mask`.
local function marked(columns, present, mask, char)
  if mask == present then return rep(char, #columns) end
  local places, parts, from = places_of(present), {}, 1
  for _, slot in ipairs(slots_of(mask)) do
    local place = places[slot]
    parts[#parts + 1] = sub(columns, from, place - 1)
    parts[#parts + 1] = char
    from = place + 1
  end
  parts[#parts + 1] = sub(columns, from)
  return concat(parts)
end

-- The present slots whose value is zero, as a mask.
local function zeros_of(values, present)
  local at = find(values, ZERO_VALUE, 1, true)
  if not at then return 0 end
  if values == sub(ZEROS, 1, #values) then return present end
  local slots, mask = slots_of(present), 0
  while at do
    local past = (at - 1) % 8
    if past == 0 then
      mask = mask + BIT[slots[(at + 7) / 8]]
      at = at + 8
    else
      at = at + 8 - past
    end
    at = find(values, ZERO_VALUE, at, true)
  end
  return mask
end

-- As `zeros_of`, but only for the slots of `mask`, which is cheaper for few slots. Most blocks have no zero at all.
local function zeros_among(values, present, mask)
  if not find(values, ZERO_VALUE, 1, true) then return 0 end
  local places, zeros = places_of(present), 0
  for _, slot in ipairs(slots_of(mask)) do
    local at = places[slot] * 8
    if sub(values, at - 7, at) == ZERO_VALUE then zeros = zeros + BIT[slot] end
  end
  return zeros
end

-- Masks of the slots by their last component.
local function by_component(components, present, mask)
  local first = byte(components)
  if components == rep(char(first), #components) then return {[first] = mask} end
  local places, masks = places_of(present), {}
  for _, slot in ipairs(slots_of(mask)) do
    local component = byte(components, places[slot])
    masks[component] = (masks[component] or 0) + BIT[slot]
  end
  return masks
end

-- The root at a slot of the block with this number.
local function root_at(number, slot)
  local first = byte(number)
  return char(first + 8 * slot) .. sub(number, 2)
end

-- A settled slot has its owner, so three masks tell the four kinds. A full block with its string header has 313 bytes: with a
-- fourth mask it would take the next size class of Redis's allocator.
local function pack_head(stamp, spout_id, start, present, owned, failed, settled)
  return pack_bytes('>I2I4I6i4i4i4', stamp, spout_id, start, without(present, settled), owned, failed)
end

-- The head of a shared block, unpacked. `over` has the slots that never change again. Cached, because heads repeat.
local heads = {}
local function head_of(block)
  local text = sub(block, 1, HEAD_BYTES)
  local head = heads[text]
  if not head then
    local stamp, spout_id, start, unsettled, owned, failed = unpack_bytes('>I2I4I6i4i4i4', text)
    local present, settled = bor(unsettled, owned), without(owned, unsettled)
    head = {
      text = text, stamp = stamp, spout_id = spout_id, start = start, present = present, owned = owned, failed = failed,
      settled = settled, over = bor(settled, band(owned, failed)), size = count_of(present), layouts = {},
    }
    head.bytes = HEAD_BYTES + 9 * head.size
    heads[text] = head
  end
  return head
end

local function values_of(block, head)
  return sub(block, HEAD_BYTES + 1, HEAD_BYTES + 8 * head.size)
end

local function components_of(block, head)
  return sub(block, HEAD_BYTES + 1 + 8 * head.size)
end

-- Convert an alone block to the shared form.
local function as_shared(block)
  if #block ~= ALONE_BYTES then return block end
  local value, component, flags, stamp, spout_id, start = unpack_bytes('>c8BBI2I4I6', block)
  local state = flags % 4
  local present = BIT[(flags - state) / 4]
  local owned, failed = state % 2 == 1 and present or 0, state >= 2 and present or 0
  return pack_head(stamp, spout_id, start, present, owned, failed, 0) .. value .. char(component)
end

local function stamp_of(block)
  return (unpack_bytes('>I2', block, #block == ALONE_BYTES and 11 or 1))
end
