-- Built from lua/reports/dashboard.lua by `make lua`: change that file.
--[[
dashboard: every app on a server, or one, on a page of 100 columns: which is sick, since when, and why.

  redis-cli --raw --eval lua/scripts/dashboard.lua
  redis-cli --raw --eval lua/scripts/dashboard.lua , orders
  redis-cli -r -1 -i 2 --raw --eval lua/scripts/dashboard.lua , --live

ARGV
  app     only this one, with more of it
  --live  begin with what clears a terminal's screen, to be refreshed in place
  --json  for programs: one JSON object
Returns
  page    text; on a cluster of the node that it runs on
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
local CALLS = 900
local RECORDS = 6000
local SHARDS_SAMPLED = 100
local ROOTS = 2000
local HISTORIES = 64
local MOST_SLOTS = 32
local GONE_MS = 15000
local SEVERITY = {LOST = 1, FULL = 2, ['NO ROTATOR'] = 3, ['SPOUT GONE'] = 4, HANGS = 5, ['RUN FAILED'] = 6, PAUSED = 7, ok = 8}

local names, words = arguments({['--live'] = true, ['--json'] = true})
if not names or #names > 1 or (names[1] and not is_app_name(names[1])) then
  return 'usage: redis-cli --raw --eval lua/scripts/dashboard.lua [, APP] [--live] [--json]' .. (names and '' or ': ' .. words)
end

local facts = server_facts()
local apps, is_whole = apps_here(names[1])

-- Shards of an app that are looked at closely, evenly spread, and how many of it each stands for.
local function some_of(app, calls_each)
  local most = math.max(1, math.floor(CALLS / #apps / calls_each))
  local step = math.max(1, math.ceil(#app.shards / most))
  local some = {}
  for i = 1, #app.shards, step do some[#some + 1] = app.shards[i] end
  return some, #some > 0 and #app.shards / #some or 0
end

-- The counters back in time: (ms, inits, acked, failed, timed_out) of some shards, the newest first.
local function history_of(app)
  local by_turn, turns, now, some = {}, {}, {NOW, 0, 0, 0, 0}, some_of(app, CALLS / HISTORIES)
  for _, shard in ipairs(some) do
    for i = 1, SAMPLED do now[i + 1] = now[i + 1] + shard.counted[i] end
    for _, text in pairs(as_table(ask('HGETALL', shard.prefix .. 'samples') or {})) do
      local sample = sample_of(text)
      if sample and sample[1] <= NOW then
        local turn = math.floor(sample[1] / period_of(shard))
        local sum = by_turn[turn] or {0, 0, 0, 0, 0, shards = 0}
        for i = 1, 5 do sum[i] = sum[i] + sample[i] end
        sum.shards = sum.shards + 1
        by_turn[turn] = sum
      end
    end
  end
  for turn, sum in pairs(by_turn) do
    if sum.shards == #some then turns[#turns + 1] = turn end
  end
  table.sort(turns, function(a, b) return a > b end)
  local found = {now}
  for _, turn in ipairs(turns) do
    local sum = by_turn[turn]
    sum[1] = sum[1] / sum.shards
    found[#found + 1] = sum
  end
  return found
end

-- Since when something holds between every two samples, back from now: nil if it does not now.
local function since(app, holds)
  local history, from = history_of(app), nil
  for i = 1, #history - 1 do
    if not holds(history[i], history[i + 1]) then break end
    from = history[i + 1][1]
  end
  return from
end

-- Outcomes that wait in each lane, and how long ago a spout asked for some.
local function look_at_lanes(app)
  local lanes = #app.shards > 0 and app.shards[1].lanes or 0
  local some, stands_for = some_of(app, 3 * lanes)
  app.lag, app.lanes = 0, {}
  for lane = 0, lanes - 1 do
    local found = {number = lane, waiting = 0, idle_ms = nil}
    for _, shard in ipairs(some) do
      local acked, failed = shard.prefix .. 'acked:' .. lane, shard.prefix .. 'failed:' .. lane
      found.waiting = found.waiting + ((ask('XLEN', acked) or 0) + (ask('XLEN', failed) or 0)) * stands_for
      for _, consumer in ipairs(ask('XINFO', 'CONSUMERS', acked, 'spout') or {}) do -- a spout asks for both kinds at once
        local idle_ms = tonumber(as_table(consumer).idle)
        if idle_ms then found.idle_ms = math.min(found.idle_ms or idle_ms, idle_ms) end
      end
    end
    app.lag = app.lag + found.waiting
    app.lanes[lane + 1] = found
  end
end

-- Memory of the app's keys; of very many buckets or lanes some stand for all.
local function memory_of(app)
  local slots, lanes = #app.shards > 0 and app.shards[1].num_buckets + 1 or 0, #app.lanes
  local slot_step, lane_step = math.ceil(slots / MOST_SLOTS), math.ceil(lanes / MOST_SLOTS)
  local some, stands_for = some_of(app, 5 + 2 * math.min(slots, MOST_SLOTS) + 2 * math.min(lanes, MOST_SLOTS))
  local total, is_known = 0, false
  local function add(shard, kind, of_kind)
    local bytes = ask('MEMORY', 'USAGE', shard.prefix .. kind)
    is_known = is_known or bytes ~= nil
    total = total + (bytes or 0) * stands_for * of_kind
  end
  for _, shard in ipairs(some) do
    for _, kind in ipairs({'ledger', 'meta', 'stats', 'samples', 'latency'}) do add(shard, kind, 1) end
    for slot = 0, slots - 1, slot_step do
      add(shard, 'bucket:' .. slot, slot_step)
      add(shard, 'fence:' .. slot, slot_step)
    end
    for lane = 0, lanes - 1, lane_step do
      add(shard, 'acked:' .. lane, lane_step)
      add(shard, 'failed:' .. lane, lane_step)
    end
  end
  return is_known and total or nil
end

-- Dead letters, and reasons of the newest; nil where they are another node's.
local function look_at_letters(app)
  local stream = 'acker:{' .. app.name .. '}:dead'
  app.dead, app.reasons = ask('XLEN', stream), {}
  local counts = {}
  for _, entry in ipairs(app.dead and app.dead > 0 and ask('XREVRANGE', stream, '+', '-', 'COUNT', 100) or {}) do
    local reason = clean(as_table(entry[2]).reason or '?')
    if not counts[reason] then app.reasons[#app.reasons + 1] = reason end
    counts[reason] = (counts[reason] or 0) + 1
  end
  table.sort(app.reasons, function(a, b) return counts[a] > counts[b] or (counts[a] == counts[b] and a > b) end)
  for i, reason in ipairs(app.reasons) do app.reasons[i] = reason .. ' ' .. counts[reason] end
end

-- How long ago a spout asked for outcomes: of the lanes where some wait, the longest, and nil where one was never asked for;
-- or of all lanes the shortest. And whether there is such a lane.
local function last_asked(app, only_waiting)
  local longest, shortest, is_any, is_new = nil, nil, false, false
  for _, lane in ipairs(app.lanes) do
    if not only_waiting or lane.waiting > 0 then
      is_any, is_new = true, is_new or not lane.idle_ms
      longest = math.max(longest or 0, lane.idle_ms or 0)
      if lane.idle_ms then shortest = math.min(shortest or lane.idle_ms, lane.idle_ms) end
    end
  end
  if not only_waiting then return shortest, is_any end
  return not is_new and longest or nil, is_any
end

local function state_of(app)
  if app.is_damaged then return 'LOST', nil, 'its settings are damaged: delete it with `acker-redis evict`' end
  if app.lost > 0 then
    return 'LOST', nil, string.format('%d of %d shards have no data: a restart without persistence, a flush or an eviction. '
      .. 'Clients that run make them anew and emit again', app.lost, app.total)
  end
  if facts.is_full then
    local from = since(app, function(later, earlier) return later[2] == earlier[2] end)
    return 'FULL', from, 'the server takes no new roots, acks go on: give it memory (maxmemory), or end spouts'
  end
  if app.rotated_ms and NOW - app.rotated_ms > math.max(2 * app.tick_ms, app.tick_ms + 2000) then
    return 'NO ROTATOR', app.rotated_ms, 'no tick since: nothing times out. Start `acker-redis rotator`'
  end
  local idle_ms, is_waited_for = last_asked(app, true)
  if not is_waited_for and app.pending > 0 then idle_ms, is_waited_for = last_asked(app, false) end
  local is_new = #app.shards == 0 or NOW - app.shards[1].created_ms < GONE_MS
  local is_known = facts.role ~= 'slave' -- a replica does not learn when a spout asked
  if is_known and is_waited_for and (idle_ms and idle_ms > GONE_MS or not idle_ms and not is_new) then
    local text = string.format('%d outcomes wait, %d roots are pending', app.lag, app.pending)
    if not idle_ms then return 'SPOUT GONE', nil, text .. ': no spout ever asked for outcomes' end
    return 'SPOUT GONE', NOW - idle_ms, text .. ': no spout asks for outcomes. Start it again'
  end
  if app.pending > 0 and app.rates.timed_out > app.rates.acked then
    local from = since(app, function(later, earlier) return later[5] - earlier[5] > later[3] - earlier[3] end)
    return 'HANGS', from, 'more roots time out than are acked: what comes behind the last stage hangs, or drops rows'
  end
  local limit = ask('HGET', 'acker:{' .. app.name .. '}:limits', 'max_pending')
  local most = tonumber(limit)
  if most and #app.shards > 0 and app.pending >= most * #app.shards / app.total then
    return 'FULL', nil, string.format('%d roots are pending, as many as its operator allows: spouts emit nothing until some settle. '
      .. 'See `acker-redis limit`', app.pending)
  end
  local failed = app.failed_runs[1]
  if failed then
    return 'RUN FAILED', failed.at, string.format('run %s ended with %s. Mend that, and start it again', failed.run, failed.error)
  end
  local paused = ask('GET', 'acker:{' .. app.name .. '}:pause')
  if paused then
    local from, reason = string.match(paused, '^(%d*) ?(.*)$')
    from = tonumber(from) or 0 -- by hand it is 0, or left out
    return 'PAUSED', from > 0 and from or nil, 'spouts emit nothing until `acker-redis resume`: '
      .. (reason ~= '' and clean(reason) or 'no reason given')
  end
  return 'ok', nil, ''
end

local function look_at(app)
  count_app(app, (names[1] or words['--json']) and #COUNTERS or SAMPLED)
  look_at_lanes(app)
  look_at_letters(app)
  app.ends = ends_of(app)
  app.failed_runs = failed_among(app.ends)
  app.memory = memory_of(app)
  local some = some_of(app, CALLS / SHARDS_SAMPLED)
  app.sample = sample_pending(app, RECORDS / #apps, math.max(4, math.min(64, ROOTS / #apps / math.max(1, #some))), some)
  app.state, app.since, app.why = state_of(app)
end

local HEADER = left('APP', 10) .. ' ' .. left('STATE', 14) .. ' ' .. right('PEND', 6) .. ' ' .. right('ack/s', 6) .. ' '
  .. right('to/min', 6) .. ' ' .. right('fail/min', 8) .. ' ' .. right('OLDEST', 7) .. ' ' .. right('LAG', 6) .. ' '
  .. right('ROTATOR', 9) .. ' ' .. right('MEM', 5) .. ' DEAD'

local function state_text(app)
  local top = app.sample.stages[1]
  return app.state == 'HANGS' and top and top.name ~= '' and 'HANGS: ' .. top.name or app.state
end

local function row_of(app)
  local rotator = '-'
  if app.rotated_ms then
    local age = short(NOW - app.rotated_ms)
    rotator = app.state == 'NO ROTATOR' and age .. '!' or age .. '/' .. short(app.tick_ms)
  end
  local dead = app.dead and amount(app.dead) .. (#app.reasons > 0 and ' ' .. table.concat(app.reasons, ' ') or '') or '-'
  return table.concat({
    left(app.name, 10), left(state_text(app), 14), right(amount(app.pending), 6), right(amount(app.rates.acked), 6),
    right(amount(app.rates.timed_out * 60), 6), right(amount(app.rates.failed * 60), 8), right(oldest_text(app.sample), 7),
    right(amount(app.lag), 6), right(rotator, 9), right(app.memory and size(app.memory) or '-', 5),
    cut(dead, 13),
  }, ' ')
end

local function explain(app, lines)
  if app.state ~= 'ok' then
    local from = app.since and string.format(' since %s, for %s', clock(app.since), duration(NOW - app.since)) or ''
    wrapped(app.name .. ' ' .. app.state .. from .. ': ' .. app.why, lines)
  end
  if app.sample.found > 0 and (app.state == 'HANGS' or names[1]) then
    local oldest = app.sample.oldest
    wrapped(string.format('%s pending by last stage: %s (of %d looked at), oldest %s, root %s', app.name, shares_text(app.sample),
      app.sample.found, duration(NOW - oldest.start), hex_of(oldest.root)), lines)
  end
end

local function more_of(app, lines)
  local counters = app.counters
  lines[#lines + 1] = ''
  wrapped(string.format('settings  %d shards (%d here), %d buckets, a tick every %s, clock %s, %d lanes', app.total or 0, #app.shards,
    app.shards[1] and app.shards[1].num_buckets or 0, duration(app.tick_ms), clean(app.shards[1] and app.shards[1].clock or '-'),
    #app.lanes), lines)
  wrapped(string.format('so far    %d inits, %d acked, %d failed, %d timed out; %d late, %d fenced, %d orphaned, %d wait for their init',
    counters.inits, counters.acked, counters.failed, counters.timed_out, counters.late_updates, counters.fenced,
    counters.orphaned, counters.unowned), lines)
  for _, lane in ipairs(app.lanes) do
    local holder = ask('GET', 'acker:{' .. app.name .. '}:lane:' .. lane.number)
    if #app.lanes <= 8 or lane.waiting > 0 then
      local ended, last = app.ends[lane.number], ''
      if ended and ended.state ~= 'begun' then
        last = string.format('; run %s %s at %s', ended.run, ended.state, clock(ended.at))
          .. (ended.state == 'failed' and ' with ' .. ended.error or '')
      elseif ended and not holder then
        last = string.format('; run %s was killed, or its process is cut off', ended.run)
      end
      wrapped(string.format('lane %-4d %d outcomes wait; asked for %s; held by %s%s', lane.number, lane.waiting,
        lane.idle_ms and duration(lane.idle_ms) .. ' ago' or 'never', holder and clean(holder) or 'nobody', last), lines)
    end
  end
end

local found = {}
for _, app in ipairs(apps) do
  if open_app(app) then
    look_at(app)
    found[#found + 1] = app
  end
end
table.sort(found, function(a, b)
  local first, second = SEVERITY[a.state], SEVERITY[b.state]
  return first < second or (first == second and a.name < b.name)
end)

if words['--json'] then
  local rows = {}
  for i, app in ipairs(found) do
    local stages = {}
    for n, one in ipairs(app.sample.stages) do stages[n] = {stage = one.name, count = one.count} end
    rows[i] = {
      app = app.name, state = app.state, since_ms = app.since, why = app.why, shards = app.total, shards_here = #app.shards,
      pending = app.pending, acked_per_sec = app.rates.acked, timed_out_per_min = app.rates.timed_out * 60,
      failed_per_min = app.rates.failed * 60, oldest_ms = app.sample.oldest.start and NOW - app.sample.oldest.start,
      waiting = app.lag, rotated_ms_ago = app.rotated_ms and NOW - app.rotated_ms, tick_ms = app.tick_ms, memory_bytes = app.memory,
      dead_letters = app.dead, failed_runs = #app.failed_runs, counters = app.counters, pending_by_stage = #stages > 0 and stages or nil,
    }
  end
  return cjson.encode({address = facts.address, used_bytes = facts.used, maxmemory_bytes = facts.most, is_whole = is_whole,
    at_ms = NOW, apps = #rows > 0 and rows or nil})
end

local lines = {server_line(facts)}
if #found == 0 then
  lines[2] = names[1] and 'no app ' .. names[1] .. ' here: its first client creates it' or 'no apps here'
else
  lines[2] = HEADER
  for _, app in ipairs(found) do lines[#lines + 1] = row_of(app) end
  for _, app in ipairs(found) do explain(app, lines) end
  if names[1] then more_of(found[1], lines) end
end
if facts.cluster_enabled == '1' then lines[#lines + 1] = 'a node of a cluster: shards of other nodes are not counted here' end
if not is_whole then lines[#lines + 1] = 'not all keys were looked at: name an app' end
return (words['--live'] and '\27[H\27[2J' or '') .. table.concat(lines, '\n')
