-- Built from lua/reports/slow.lua by `make lua`: change that file.
--[[
slow: how old roots were when they settled, by outcome, of one app or of all: percentiles, since its shards were made.

  redis-cli --raw --eval lua/scripts/slow.lua
  redis-cli --raw --eval lua/scripts/slow.lua , orders

ARGV
  app     only this one, with how many roots are in each bound
  --json  for programs: one JSON object
Returns
  page    text; percentiles are bounds, so p99 5.0s says that 99 of 100 roots took at most 5 s
]]
-- page: what all pages for redis-cli share. They run by EVAL without KEYS, also for a user who may only read and on a
-- replica; they write nothing and are bounded. On a cluster a page is of the node it runs on: keys of others are not seen.
-- block: records of up to 32 roots that stand side by side. A root's top five bits are its slot, the other 59 its block.
-- A field of the ledger is a block, 8 bytes; a mask has one bit per slot. Two forms of records, told apart by their length:
--   alone, 22 bytes, for one root: value 8, last stage 1, state + 4 * slot 1, tick stamp 2, task 4, start ms 6
--   shared, 28 + 9 n bytes: tick stamp 2, task 4, start ms 6, masks 4 each: present, owned, failed, settled;
--     then, in the order of the n present slots, the values 8 each, and the last stages 1 each
-- Only an owned root settles. A closed one failed: its outcome is written, and it stays until its record's time is over, so
-- that later updates of it are known for what they are. A settled one was acked; it stays while the block does.
-- bytes: the fixed-width packing and the 32-bit operations that every script works with.
-- Redis and Valkey bring `bit` and `struct`; where a server's Lua lacks them (fakeredis) the same few formats are
-- written out in plain Lua. Formats: '>' first, then i4 (signed), I2 I4 I6 (unsigned), B (one byte),
-- c8 c14 (a string of so many bytes). Results of the operations are signed, as those of `bit` are.
local band, bor, bxor, pack_bytes, unpack_bytes
if bit and struct then
  band, bor, bxor, pack_bytes, unpack_bytes = bit.band, bit.bor, bit.bxor, struct.pack, struct.unpack
else
  local function fields(format)
    local list = {}
    for kind, width in string.gmatch(string.sub(format, 2), '(%a)(%d*)') do
      list[#list + 1] = {width = (kind == 'B') and 1 or tonumber(width), signed = (kind == 'i'), text = (kind == 'c')}
    end
    return list
  end
  local function signed(value)
    if value >= 2147483648 then return value - 4294967296 end
    return value
  end
  local function common(a, b)
    local result, place = 0, 1
    while a > 0 and b > 0 do
      local abit, bbit = a % 2, b % 2
      if abit + bbit == 2 then result = result + place end
      a, b, place = (a - abit) / 2, (b - bbit) / 2, place * 2
    end
    return result
  end
  band = function(a, b)
    return signed(common(a % 4294967296, b % 4294967296))
  end
  bor = function(a, b)
    a, b = a % 4294967296, b % 4294967296
    return signed(a + b - common(a, b))
  end
  bxor = function(a, b)
    a, b = a % 4294967296, b % 4294967296
    return signed(a + b - 2 * common(a, b))
  end
  pack_bytes = function(format, ...)
    local values, out = {...}, {}
    for i, field in ipairs(fields(format)) do
      if field.text then
        out[i] = string.sub(values[i], 1, field.width)
      else
        local value, chars = values[i] % (256 ^ field.width), {}
        for place = field.width, 1, -1 do
          local low = value % 256
          chars[place], value = string.char(low), (value - low) / 256
        end
        out[i] = table.concat(chars)
      end
    end
    return table.concat(out)
  end
  unpack_bytes = function(format, text, position)
    local out, at = {}, position or 1
    for i, field in ipairs(fields(format)) do
      local value = 0
      if field.text then
        value = string.sub(text, at, at + field.width - 1)
      else
        for place = at, at + field.width - 1 do value = value * 256 + string.byte(text, place) end
        if field.signed and value >= 256 ^ field.width / 2 then value = value - 256 ^ field.width end
      end
      out[i], at = value, at + field.width
    end
    out[#out + 1] = at
    return unpack(out)
  end
end
local sub, byte, char, rep, find, concat = string.sub, string.byte, string.char, string.rep, string.find, table.concat
local WAITING, OWNED, FAILED, CLOSED = 0, 1, 2, 3
local ALONE_BYTES, HEAD_BYTES = 22, 28
local ZERO_VALUE, ZEROS = rep('\0', 8), rep('\0', 256)

-- The bits of the slots, as the masks have them; and for masks of one bit what stands for the slot in an alone record.
-- Written out: every call runs these lines, and a loop took a third of what a call costs before it does anything.
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

-- The places of the ones in a byte, lowest first; worked out when they are met.
local ones_by_byte = {[0] = {}}
local function ones_of(value)
  local ones, rest = {}, value
  for place = 0, 7 do
    if rest % 2 == 1 then ones[#ones + 1] = place end
    rest = (rest - rest % 2) / 2
  end
  ones_by_byte[value] = ones
  return ones
end

local function count_of(mask)
  local rest, count = mask % 4294967296, 0
  while rest > 0 do
    local low = rest % 256
    count = count + #(ones_by_byte[low] or ones_of(low))
    rest = (rest - low) / 256
  end
  return count
end

-- The slots of a mask, lowest first, and the place of each among them; remembered, as neighbours are alike.
local slots_by_mask, places_by_mask = {}, {}
local function slots_of(mask)
  local slots = slots_by_mask[mask]
  if not slots then
    slots = {}
    local rest, first, n = mask % 4294967296, 0, 0
    while rest > 0 do
      local low = rest % 256
      if low > 0 then
        local ones = ones_by_byte[low] or ones_of(low)
        for i = 1, #ones do slots[n + i] = first + ones[i] end
        n = n + #ones
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

-- The columns of some slots, laid out for more: zeros where there was nothing.
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

-- The columns of some slots, of fewer of them.
local function picked(columns, mask, fewer, width)
  if mask == fewer then return columns end
  local places, parts = places_of(mask), {}
  for i, slot in ipairs(slots_of(fewer)) do
    local place = places[slot]
    parts[i] = sub(columns, (place - 1) * width + 1, place * width)
  end
  return concat(parts)
end

-- One-byte columns with the same byte put in for some of the slots.
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

-- The same of some of the slots, one by one: cheaper where they are few. Most often there is no zero at all.
local function zeros_among(values, present, mask)
  if not find(values, ZERO_VALUE, 1, true) then return 0 end
  local places, zeros = places_of(present), 0
  for _, slot in ipairs(slots_of(mask)) do
    local at = places[slot] * 8
    if sub(values, at - 7, at) == ZERO_VALUE then zeros = zeros + BIT[slot] end
  end
  return zeros
end

-- Masks of the slots by their last stage.
local function by_stage(stages, present, mask)
  local first = byte(stages)
  if stages == rep(char(first), #stages) then return {[first] = mask} end
  local places, masks = places_of(present), {}
  for _, slot in ipairs(slots_of(mask)) do
    local stage = byte(stages, places[slot])
    masks[stage] = (masks[stage] or 0) + BIT[slot]
  end
  return masks
end

-- The root that has a slot of a block.
local function root_at(block, slot)
  local first = byte(block)
  return char(first + 8 * slot) .. sub(block, 2)
end

local function pack_head(stamp, task, start, present, owned, failed, settled)
  return pack_bytes('>I2I4I6i4i4i4i4', stamp, task, start, present, owned, failed, settled)
end

-- What the head of a shared record says. `over`: the slots that nothing changes any more. Remembered: neighbours are alike.
local heads = {}
local function head_of(record)
  local text = sub(record, 1, HEAD_BYTES)
  local head = heads[text]
  if not head then
    local stamp, task, start, present, owned, failed, settled = unpack_bytes('>I2I4I6i4i4i4i4', text)
    head = {
      text = text, stamp = stamp, task = task, start = start, present = present, owned = owned, failed = failed,
      settled = settled, over = bor(settled, band(owned, failed)), size = count_of(present),
    }
    heads[text] = head
  end
  return head
end

local function values_of(record, head)
  return sub(record, HEAD_BYTES + 1, HEAD_BYTES + 8 * head.size)
end

local function stages_of(record, head)
  return sub(record, HEAD_BYTES + 1 + 8 * head.size)
end

-- An alone record in the shared form.
local function as_shared(record)
  if #record ~= ALONE_BYTES then return record end
  local value, stage, flags, stamp, task, start = unpack_bytes('>c8BBI2I4I6', record)
  local state = flags % 4
  local present = BIT[(flags - state) / 4]
  local owned, failed = state % 2 == 1 and present or 0, state >= 2 and present or 0
  return pack_head(stamp, task, start, present, owned, failed, 0) .. value .. char(stage)
end

local function stamp_of(record)
  return (unpack_bytes('>I2', record, #record == ALONE_BYTES and 11 or 1))
end
local WIDTH = 100
local KEYS_LOOKED_AT = 50000
local MOST_SHARDS = 4096

local time = redis.call('TIME')
local NOW = time[1] * 1000 + math.floor(time[2] / 1000)

-- A reply; or nil and why not: the key is another node's, or holds something else, or the user may not run the command.
local function ask(...)
  local reply = redis.pcall(...)
  if type(reply) == 'table' and reply.err then return nil, reply.err end
  return reply
end

local function is_foreign(why)
  return why ~= nil and string.find(why, 'WRONGTYPE', 1, true) ~= nil
end

local function is_app_name(name)
  return #name <= 64 and string.find(name, '^[%w][%w_.-]*$') ~= nil
end

local function as_table(pairs_found)
  local fields = {}
  for i = 1, #pairs_found, 2 do fields[pairs_found[i]] = pairs_found[i + 1] end
  return fields
end

-- Names are whatever somebody's data held: what acts on a terminal is not shown.
local function clean(text)
  text = string.gsub(tostring(text), '[%c\127]', '?')
  text = string.gsub(text, '\194[\128-\159]', '?')
  return (string.gsub(text, '\226\128[\128-\191]', '?'))
end

-- Characters, not bytes, of UTF-8.
local function width(text)
  return #string.gsub(text, '[\128-\191]', '')
end

local function cut(text, most)
  if width(text) <= most then return text end
  local kept, count = {}, 0
  for char in string.gmatch(text, '[%z\1-\127\192-\255][\128-\191]*') do
    count = count + 1
    if count >= most then break end
    kept[count] = char
  end
  return table.concat(kept) .. '~'
end

local function left(text, size)
  text = cut(tostring(text), size)
  return text .. string.rep(' ', size - width(text))
end

local function right(text, size)
  text = cut(tostring(text), size)
  return string.rep(' ', size - width(text)) .. text
end

local function duration(ms)
  local secs = math.max(0, ms) / 1000
  if secs < 10 then return string.format('%.1fs', secs) end
  if secs < 120 then return string.format('%ds', secs) end
  if secs < 7200 then return string.format('%dm%02ds', secs / 60, secs % 60) end
  if secs < 172800 then return string.format('%dh%02dm', secs / 3600, secs % 3600 / 60) end
  return string.format('%dd%02dh', secs / 86400, secs % 86400 / 3600)
end

local function short(ms)
  local secs = math.max(0, ms) / 1000
  if secs < 2 then return string.format('%.1fs', secs) end
  if secs < 120 then return string.format('%ds', secs) end
  if secs < 7200 then return string.format('%dm', secs / 60) end
  return string.format('%dh', secs / 3600)
end

local function amount(number)
  number = math.floor(number + 0.5)
  if number < 100000 then return string.format('%d', number) end
  if number < 9999500 then return string.format('%.0fk', number / 1000) end
  if number < 9999500000 then return string.format('%.0fM', number / 1000000) end
  return string.format('%.0fG', number / 1000000000)
end

local function size(bytes)
  for _, unit in ipairs({'B', 'K', 'M', 'G'}) do
    if bytes < 1000 then return string.format(bytes < 9.95 and unit ~= 'B' and '%.1f%s' or '%.0f%s', bytes, unit) end
    bytes = bytes / 1024
  end
  return string.format('%.1fT', bytes)
end

local function clock(ms)
  local secs = math.floor(ms / 1000) % 86400
  return string.format('%02d:%02d:%02dZ', secs / 3600, secs % 3600 / 60, secs % 60)
end

local function server_facts()
  local facts = {}
  for _, section in ipairs({'server', 'memory', 'replication', 'cluster', 'persistence'}) do
    for name, value in string.gmatch(ask('INFO', section) or '', '([%w_]+):([^\r\n]*)') do facts[name] = value end
  end
  facts.address = ':' .. (facts.tcp_port or '?')
  if facts.cluster_enabled == '1' then
    facts.address = string.match(ask('CLUSTER', 'NODES') or '', '(%S+)@%S* [%w,]*myself') or facts.address
  end
  facts.used, facts.most = tonumber(facts.used_memory) or 0, tonumber(facts.maxmemory) or 0
  facts.is_full = facts.most > 0 and facts.used >= 0.99 * facts.most
  return facts
end

local function server_line(facts)
  local memory = size(facts.used) .. (facts.most > 0 and '/' .. size(facts.most) or ', no limit')
  local role = facts.role == 'slave' and 'replica, link ' .. (facts.master_link_status or '?') or 'primary'
  return cut(string.format('acker %s  used %s %s  %s  %s', facts.address, memory, facts.maxmemory_policy or '', role, clock(NOW)), WIDTH)
end

-- The apps that have keys here, or the one that is asked for; and whether all keys were looked at.
local function apps_here(wanted)
  local by_name, apps = {}, {}
  local function app_of(name)
    if not by_name[name] then
      by_name[name] = {name = name, seen = {}}
      apps[#apps + 1] = by_name[name]
    end
    return by_name[name]
  end
  if wanted then
    app_of(wanted)
    return apps, true
  end
  local cursor, looked = '0', 0
  repeat
    local step = redis.call('SCAN', cursor, 'MATCH', 'acker:{*}:[cm]*', 'COUNT', 1000)
    cursor, looked = step[1], looked + 1000
    for _, key in ipairs(step[2]) do
      local name = string.match(key, '^acker:{([^:{}]+)}:config$')
      if name and is_app_name(name) then app_of(name) end
      local of_shard, shard = string.match(key, '^acker:{([^:{}]+):(%d+)}:meta$')
      if of_shard and is_app_name(of_shard) then app_of(of_shard).seen[tonumber(shard)] = true end
    end
  until cursor == '0' or looked >= KEYS_LOOKED_AT
  table.sort(apps, function(a, b) return a.name < b.name end)
  return apps, cursor == '0'
end

local OWN = {'generation', 'tick', 'last_rotation_ms', 'created_ms'}
local ALIKE = {'num_buckets', 'lanes', 'tick_ms', 'shards', 'clock'} -- in all shards of an app: asked of the first

local function shard_at(app, number)
  local prefix, first = 'acker:{' .. app.name .. ':' .. number .. '}:', app.shards[1]
  local own, why = ask('HMGET', prefix .. 'meta', unpack(OWN))
  if not own and not is_foreign(why) then return nil end
  own = own or {}
  local shard = {
    number = number, prefix = prefix, tick = tonumber(own[2]), last_rotation_ms = tonumber(own[3]), created_ms = tonumber(own[4]),
  }
  shard.is_lost = not (own[1] and shard.tick and shard.last_rotation_ms and shard.created_ms)
  if shard.is_lost then return shard end
  local alike = not first and ask('HMGET', prefix .. 'meta', unpack(ALIKE)) or {}
  for i, name in ipairs(ALIKE) do
    shard[name] = first and first[name] or name == 'clock' and alike[i] or tonumber(alike[i])
    if not shard[name] then shard.is_lost = true end
  end
  return shard
end

-- The app's shards on this node: `shards`, of `total`; those without data are `lost`. False where there is no such app.
local function open_app(app)
  local config, why = ask('HGETALL', 'acker:{' .. app.name .. '}:config')
  app.config, app.is_damaged = config and as_table(config) or {}, is_foreign(why)
  app.total = tonumber(app.config.shards)
  app.shards, app.lost, app.remote = {}, 0, 0
  local number = 0
  if not app.total then -- the settings are another node's
    for seen in pairs(app.seen) do number = math.max(number, seen) end
  end
  local last = math.min((app.total or MOST_SHARDS), MOST_SHARDS) - 1
  if not app.total and next(app.seen) then
    local one = shard_at(app, number)
    if one and one.shards then last = one.shards - 1 end
  end
  number = 0
  while number <= last do
    local shard = shard_at(app, number)
    if not shard then
      app.remote = app.remote + 1
    elseif shard.is_lost then
      app.lost = app.lost + 1
    else
      app.shards[#app.shards + 1] = shard
      last, app.total = math.min(last, shard.shards - 1), app.total or shard.shards
    end
    number = number + 1
  end
  app.remote = math.min(app.remote, (app.total or 0) - #app.shards)
  if not app.config.shards then app.lost = #app.shards > 0 and app.total - #app.shards - app.remote or 0 end
  return #app.shards > 0 or app.config.shards ~= nil or app.is_damaged
end

local COUNTERS = {
  'inits', 'acked', 'failed', 'timed_out', 'acks', 'fails', 'orphaned', 'closed', 'unowned', 'late_updates', 'fenced',
  'duplicate_inits',
}
local SAMPLED = 4
local RING_OF_SAMPLES = 60

local function period_of(shard)
  return math.max(shard.tick_ms, 10000)
end

-- A sample of lua/scripts/rotate.lua: when, and the first counters.
local function sample_of(text)
  local at, inits, acked, failed, timed_out = string.match(text or '', '^(%d+) (%d+) (%d+) (%d+) (%d+)$')
  return at and {tonumber(at), tonumber(inits), tonumber(acked), tonumber(failed), tonumber(timed_out)}
end

-- What a shard's rates are counted from: the newest sample that is old enough, or all there ever was.
local function sample_before(shard)
  local turn, key = math.floor(NOW / period_of(shard)), shard.prefix .. 'samples'
  local recent = ask('HMGET', key, turn % RING_OF_SAMPLES, (turn - 1) % RING_OF_SAMPLES, (turn - 2) % RING_OF_SAMPLES) or {}
  for i = 1, 3 do
    local sample = sample_of(recent[i])
    if sample and NOW - sample[1] >= 5000 and NOW - sample[1] < 4 * period_of(shard) then return sample end
  end
  local newest = nil
  for _, text in pairs(as_table(ask('HGETALL', key) or {})) do
    local sample = sample_of(text)
    if sample and NOW - sample[1] >= 5000 and (not newest or sample[1] > newest[1]) then newest = sample end
  end
  return newest or {shard.created_ms, 0, 0, 0, 0}
end

-- The first `counted` counters of the app's shards here, summed, and how fast the first four grow, per second.
local function count_app(app, counted)
  app.counters, app.rates, app.rotated_ms, app.tick_ms = {}, {}, nil, 0
  for i, name in ipairs(COUNTERS) do
    if i <= counted then app.counters[name] = 0 end
    if i <= SAMPLED then app.rates[name] = 0 end
  end
  for _, shard in ipairs(app.shards) do
    local found, before = ask('HMGET', shard.prefix .. 'stats', unpack(COUNTERS, 1, counted)) or {}, sample_before(shard)
    local secs = math.max(1, (NOW - before[1]) / 1000)
    for i = 1, counted do
      local name, value = COUNTERS[i], tonumber(found[i] or 0) or 0
      found[i] = value
      app.counters[name] = app.counters[name] + value
      if i <= SAMPLED then app.rates[name] = app.rates[name] + math.max(0, value - before[i + 1]) / secs end
    end
    shard.counted = found
    app.rotated_ms = math.min(app.rotated_ms or NOW, shard.last_rotation_ms)
    app.tick_ms = shard.tick_ms
  end
  local counters = app.counters
  app.pending = counters.inits - counters.acked - counters.failed - counters.timed_out
end

-- How the last run of each lane ended. Nothing where another node has it.
local function ends_of(app)
  local ends = {}
  for lane, text in pairs(as_table(ask('HGETALL', 'acker:{' .. app.name .. '}:ends') or {})) do
    local is_json, found = pcall(cjson.decode, text)
    if is_json and type(found) == 'table' then
      ends[tonumber(lane) or -1] = {
        run = clean(found.run_id), state = clean(found.state), at = tonumber(found.at_ms) or 0, error = clean(found.error),
      }
    end
  end
  return ends
end

-- Those that did with an error, the last one first.
local function failed_among(ends)
  local failed = {}
  for _, one in pairs(ends) do
    if one.state == 'failed' then failed[#failed + 1] = one end
  end
  table.sort(failed, function(a, b) return a.at > b.at or (a.at == b.at and a.run < b.run) end)
  return failed
end

local function hex_of(root)
  local hi, lo = unpack_bytes('>I4I4', root)
  return string.format('%08x%08x', hi, lo)
end

local function stage_of(shard, number)
  if number == 0 then return '' end
  shard.names = shard.names or {}
  if not shard.names[number] then
    shard.names[number] = clean(ask('HGET', shard.prefix .. 'meta', 'stage:' .. number) or number)
  end
  return shard.names[number]
end

-- The pending roots of a record by last stage: calls back with one of them, their task, start and number of the stage, and how
-- many they are. Roots of one record have one start.
local function each_pending(block, record, found)
  if #record == ALONE_BYTES then
    local stage, flags, _, task, start = unpack_bytes('>BBI2I4I6', record, 9)
    local state = flags % 4
    if state == OWNED then found(root_at(block, (flags - state) / 4), task, start, stage, 1) end
    return
  end
  local head = head_of(record)
  local pending = without(head.owned, head.over)
  if pending == 0 then return end
  for stage, mask in pairs(by_stage(stages_of(record, head), head.present, pending)) do
    found(root_at(block, slots_of(mask)[1]), head.task, head.start, stage, count_of(mask))
  end
end

-- Looks at the pending roots that were put longest ago, of every shard in turn (or of `some`), until `room` records were read or
-- `enough` roots found in each. Gives the number found, `by_stage` with count and oldest of each, the oldest of all, and
-- `until_ms`: none was put before that and is not among these.
local function sample_pending(app, room, enough, some)
  local sample = {found = 0, by_stage = {}, oldest = {}, until_ms = nil, is_whole = true}
  local shards = some or app.shards
  local share = math.max(16, math.floor(room / math.max(1, #shards)))
  local shard, found_here

  local function take(root, task, start, stage, count)
    found_here = found_here + count
    local name = stage == 0 and '' or stage_of(shard, stage)
    local of_stage = sample.by_stage[name]
    if not of_stage then
      of_stage = {name = name, count = 0, oldest = {}}
      sample.by_stage[name] = of_stage
    end
    of_stage.count = of_stage.count + count
    of_stage.oldest[#of_stage.oldest + 1] = {root = root, task = task, start = start, shard = shard.number, stage = name}
  end

  for _, one in ipairs(shards) do
    shard, found_here = one, 0
    local left_over, reached, slots = share, nil, shard.num_buckets + 1
    local step, group = 1, 4 -- a part of the oldest cohort is enough where all is pending
    for tick = math.max(0, shard.tick - shard.num_buckets), shard.tick do
      local bucket, offset, stamp = shard.prefix .. 'bucket:' .. tick % slots, 0, tick % 65536
      while left_over > 0 and found_here < enough do
        local cohorts = ask('ZRANGE', bucket, offset, offset + step - 1, 'WITHSCORES') or {}
        left_over = left_over - 0.25 -- a thousand empty buckets cost, too
        for i = 1, #cohorts, 2 do
          local cohort, at = cohorts[i], 1
          reached = tonumber(cohorts[i + 1])
          while at <= #cohort and left_over > 0 and found_here < enough do
            local blocks = {}
            for n = 1, math.min((#cohort - at + 1) / 8, group) do blocks[n] = sub(cohort, at + n * 8 - 8, at + n * 8 - 1) end
            local records = ask('HMGET', shard.prefix .. 'ledger', unpack(blocks)) or {}
            for n, block in ipairs(blocks) do
              local record = records[n]
              if record and found_here < enough and stamp_of(record) == stamp then each_pending(block, record, take) end
            end
            at, left_over, group = at + #blocks * 8, left_over - #blocks, math.min(group * 2, 64)
          end
        end
        if #cohorts < 2 * step then break end
        offset, step = offset + step, math.min(step * 2, 16)
      end
    end
    sample.found = sample.found + found_here
    if left_over <= 0 or found_here >= enough then
      sample.is_whole = false
      if found_here == 0 and reached then sample.until_ms = math.min(sample.until_ms or reached, reached) end
    end
  end
  sample.stages = {}
  for _, of_stage in pairs(sample.by_stage) do
    table.sort(of_stage.oldest, function(a, b) return a.start < b.start end)
    sample.stages[#sample.stages + 1] = of_stage
    local first = of_stage.oldest[1]
    if not sample.oldest.start or first.start < sample.oldest.start then sample.oldest = first end
  end
  table.sort(sample.stages, function(a, b) return a.count > b.count or (a.count == b.count and a.name < b.name) end)
  return sample
end

local function stage_text(name)
  return name == '' and '(no stage yet)' or name
end

local function shares_text(sample)
  local parts = {}
  for i = 1, math.min(3, #sample.stages) do
    local one = sample.stages[i]
    parts[i] = string.format('%s %.0f %%', stage_text(one.name), 100 * one.count / sample.found)
  end
  if #sample.stages > 3 then parts[4] = #sample.stages - 3 .. ' others' end
  return table.concat(parts, ', ')
end

local function oldest_text(sample)
  if sample.oldest.start then return duration(NOW - sample.oldest.start) end
  if sample.until_ms then return '<' .. duration(NOW - sample.until_ms) end
  return '-'
end

-- A text over several lines, the later ones set in.
local function wrapped(text, lines)
  local line, words = string.match(text, '^ *'), 0
  local indent = line .. '  '
  for word in string.gmatch(text, '%S+') do
    if words > 0 and width(line) + 1 + width(word) > WIDTH then
      lines[#lines + 1] = cut(line, WIDTH)
      line, words = indent, 0
    end
    line, words = words == 0 and line .. word or line .. ' ' .. word, words + 1
  end
  lines[#lines + 1] = cut(line, WIDTH)
end

-- Arguments are a name or more, and words that begin with --.
local function arguments(known)
  local names, words = {}, {}
  for _, argument in ipairs(ARGV) do
    if sub(argument, 1, 2) == '--' then
      if not known[argument] then return nil, 'unknown ' .. clean(argument) end
      words[argument] = true
    else
      names[#names + 1] = argument
    end
  end
  return names, words
end
local OUTCOMES = {'acked', 'failed', 'timed_out'}

local names, words = arguments({['--json'] = true})
if not names or #names > 1 or (names[1] and not is_app_name(names[1])) then
  return 'usage: redis-cli --raw --eval lua/scripts/slow.lua [, APP] [--json]'
end

-- Counts by bound, of all shards here; the bound is a number of ms, or math.huge.
local function ages_of(app)
  local found = {}
  for _, outcome in ipairs(OUTCOMES) do found[outcome] = {total = 0, counts = {}} end
  for _, shard in ipairs(app.shards) do
    for name, count in pairs(as_table(ask('HGETALL', shard.prefix .. 'latency') or {})) do
      local outcome, bound = string.match(name, '^([a-z_]+):(%w+)$')
      local ages = found[outcome or '']
      bound, count = tonumber(bound) or math.huge, tonumber(count)
      if ages and count then
        ages.total = ages.total + count
        ages.counts[bound] = (ages.counts[bound] or 0) + count
      end
    end
  end
  for _, ages in pairs(found) do
    ages.bounds = {}
    for bound in pairs(ages.counts) do ages.bounds[#ages.bounds + 1] = bound end
    table.sort(ages.bounds)
  end
  return found
end

local function bound_text(bound)
  return bound == math.huge and '>' .. duration(5000000) or duration(bound)
end

local function percentile(ages, share)
  local seen = 0
  for _, bound in ipairs(ages.bounds) do
    seen = seen + ages.counts[bound]
    if seen >= share * ages.total then return bound end
  end
end

local lines, rows = {}, {}
local apps = apps_here(names[1])
for _, app in ipairs(apps) do
  if open_app(app) then
    local found = ages_of(app)
    local row = {app = app.name, shards = app.total, shards_here = #app.shards, outcomes = {}}
    rows[#rows + 1] = row
    for _, outcome in ipairs(OUTCOMES) do
      local ages = found[outcome]
      local counts = {}
      for i, bound in ipairs(ages.bounds) do
        counts[i] = {le_ms = bound ~= math.huge and bound or nil, count = ages.counts[bound]}
      end
      row.outcomes[outcome] = {total = ages.total, counts = #counts > 0 and counts or nil}
      if ages.total > 0 then
        if #lines == 0 then
          lines[1] = left('APP', 20) .. ' ' .. left('OUTCOME', 9) .. ' ' .. right('ROOTS', 7) .. ' ' .. right('p50', 7) .. ' '
            .. right('p90', 7) .. ' ' .. right('p99', 7) .. ' ' .. right('p99.9', 7)
        end
        lines[#lines + 1] = left(app.name, 20) .. ' ' .. left(outcome, 9) .. ' ' .. right(amount(ages.total), 7) .. ' '
          .. right(bound_text(percentile(ages, 0.5)), 7) .. ' ' .. right(bound_text(percentile(ages, 0.9)), 7) .. ' '
          .. right(bound_text(percentile(ages, 0.99)), 7) .. ' ' .. right(bound_text(percentile(ages, 0.999)), 7)
        if names[1] then
          for _, bound in ipairs(ages.bounds) do
            lines[#lines + 1] = string.format('  up to %s %s', right(bound_text(bound), 8), right(amount(ages.counts[bound]), 7))
          end
        end
      end
    end
  end
end
if words['--json'] then return cjson.encode({apps = #rows > 0 and rows or nil}) end
if #rows == 0 then return names[1] and 'no app ' .. names[1] .. ' here: its first client creates it' or 'no apps here' end
if #lines == 0 then lines[1] = 'no root has settled yet' end
return table.concat(lines, '\n')
