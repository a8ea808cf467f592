-- fold: XORs the values of a call into those of shared blocks, many blocks in one command.
-- If a call updates at least DENSE slots of a block, both sides get the same layout, and BITOP XORs all such blocks together,
-- on two scratch keys of the shard. Fewer slots are XORed in Lua. Break-even was measured at about four of 32.
--- @include "lib/block"
local DENSE = 4

-- The caller leaves out slots that never change again. Absent slots are added. `folds` gathers the blocks of a call.
-- `fold.values` is final once `fold_all` ran.
local function fold_in(folds, number, block, head, mask, values)
  local present = bor(head.present, mask)
  local fold = {number = number, head = head, mask = mask, present = present, grown = present ~= head.present}
  fold.values = spread(values_of(block, head), head.present, present, 8)
  fold.components = spread(components_of(block, head), head.present, present, 1)
  folds[#folds + 1] = fold
  if #values >= 8 * DENSE then
    fold.more = spread(values, mask, present, 8)
    return
  end
  local places, parts, n, from = places_of(present), {}, 0, 1
  for i, slot in ipairs(slots_of(mask)) do
    local at = places[slot] * 8 - 7
    local hi, lo = unpack_bytes('>i4i4', fold.values, at)
    local more_hi, more_lo = unpack_bytes('>i4i4', values, i * 8 - 7)
    parts[n + 1] = sub(fold.values, from, at - 1)
    parts[n + 2] = pack_bytes('>i4i4', bxor(hi, more_hi), bxor(lo, more_lo))
    n, from = n + 2, at + 8
  end
  parts[n + 1] = sub(fold.values, from)
  fold.values = concat(parts)
end

local function is_error(reply)
  return type(reply) == 'table' and reply.err
end

-- XOR two lists of strings of equal lengths, pair by pair, and join the results. Returns an error reply if a command failed.
-- The scratch keys are removed in any case. They exist on this node only, and are neither replicated nor in the AOF.
local function xored(olds, news, left, right)
  if redis.set_repl then redis.set_repl(redis.REPL_NONE) end
  local reply = redis.pcall('SET', left, concat(olds))
  if not is_error(reply) then reply = redis.pcall('SET', right, concat(news)) end
  if not is_error(reply) then reply = redis.pcall('BITOP', 'XOR', left, left, right) end
  if not is_error(reply) then reply = redis.pcall('GET', left) end
  redis.call('DEL', left, right)
  if redis.set_repl then redis.set_repl(redis.REPL_ALL) end
  return reply
end

-- Complete all folds. Returns an error reply if a command failed.
local function fold_all(folds, left, right)
  local olds, news = {}, {}
  for _, fold in ipairs(folds) do
    if fold.more then
      olds[#olds + 1], news[#news + 1] = fold.values, fold.more
    end
  end
  if #olds == 0 then return nil end
  local reply = xored(olds, news, left, right)
  if is_error(reply) then return reply end
  local at = 1
  for _, fold in ipairs(folds) do
    if fold.more then
      local size = #fold.values
      fold.values, at = sub(reply, at, at + size - 1), at + size
    end
  end
  return nil
end
