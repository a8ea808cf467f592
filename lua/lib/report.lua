-- report: helpers of all reports. Reports run without KEYS, as functions or by EVAL, also on a replica and for a user who may
-- only read. They write nothing, and their work is bounded. On a cluster a report covers the node that it runs on.
--- @include "lib/block"
--- @include "lib/lateness"
local WIDTH = 100
local KEYS_LOOKED_AT = 50000
local MOST_SHARDS = 4096

local time = redis.call('TIME')
local NOW = time[1] * 1000 + math.floor(time[2] / 1000)

-- Return a reply, or nil and the reason: the key is on another node or of another type, or the command is forbidden.
local function ask(...)
  local reply = redis.pcall(...)
  if type(reply) ~= 'table' or not reply.err then return reply end
  if string.find(reply.err, 'stale replica', 1, true) then return redis.call(...) end -- no key can be read: raise the error
  return nil, reply.err
end

local function is_foreign(why)
  return why ~= nil and string.find(why, 'WRONGTYPE', 1, true) ~= nil
end

local function is_app_name(name)
  return #name <= 64 and string.find(name, '^[%w][%w_.-]*$') ~= nil
end

local function no_app_text(name)
  return 'no app ' .. name .. ' here. Its first client creates it. The dashboard without a name lists all apps'
end

local function as_table(names_and_values)
  local fields = {}
  for i = 1, #names_and_values, 2 do fields[names_and_values[i]] = names_and_values[i + 1] end
  return fields
end

-- Names come from users' data, so characters that control a terminal are replaced.
local function clean(text)
  text = string.gsub(tostring(text), '[%c\127]', '?')
  text = string.gsub(text, '\194[\128-\159]', '?')
  return (string.gsub(text, '\226\128[\128-\191]', '?'))
end

-- Count characters of UTF-8, not bytes.
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

-- The apps with keys on this node, or the requested one, and whether all keys were scanned.
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
local ALIKE = {'num_buckets', 'lanes', 'tick_ms', 'shards', 'clock'} -- equal in all shards of an app: read from the first

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

-- The app's shards on this node: `shards`, of `total`. Shards without data are `lost`. False if the app does not exist.
local function open_app(app)
  local config, why = ask('HGETALL', 'acker:{' .. app.name .. '}:config')
  app.config, app.is_damaged = config and as_table(config) or {}, is_foreign(why)
  app.total = tonumber(app.config.shards)
  app.shards, app.lost, app.remote = {}, 0, 0
  local number = 0
  if not app.total then -- the settings are on another node
    for seen in pairs(app.seen) do number = math.max(number, seen) end
  end
  local last = math.min((app.total or MOST_SHARDS), MOST_SHARDS) - 1
  if not app.total and next(app.seen) then
    local shard = shard_at(app, number)
    if shard and shard.shards then last = shard.shards - 1 end
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
  'inits', 'acked', 'failed', 'timed_out', 'released', 'acks', 'fails', 'orphaned', 'closed', 'unowned', 'late_updates',
  'deduplicated', 'duplicate_inits',
}
local SAMPLED = 4
local RING_OF_SAMPLES = 60

local function period_of(shard)
  return math.max(shard.tick_ms, 10000)
end

-- A sample of lua/scripts/rotate.lua: its time, and the first counters.
local function sample_of(text)
  local at, inits, acked, failed, timed_out = string.match(text or '', '^(%d+) (%d+) (%d+) (%d+) (%d+)$')
  return at and {tonumber(at), tonumber(inits), tonumber(acked), tonumber(failed), tonumber(timed_out)}
end

-- The sample that a shard's rates are computed from: the newest that is old enough, otherwise the shard's creation.
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

-- The sums of the first `counted` counters of the app's shards here, and the rates of the first four, per second.
local function count_app(app, counted)
  app.counters, app.rates, app.rotated_ms, app.tick_ms = {}, {}, nil, 0
  for i, name in ipairs(COUNTERS) do
    if i <= counted then app.counters[name] = 0 end
    if i <= SAMPLED then app.rates[name] = 0 end
  end
  for _, shard in ipairs(app.shards) do
    local values, before = {}, sample_before(shard)
    if counted < #COUNTERS then
      values = ask('HMGET', shard.prefix .. 'stats', unpack(COUNTERS, 1, counted)) or {}
    else
      shard.stats = as_table(ask('HGETALL', shard.prefix .. 'stats') or {})
      for i, name in ipairs(COUNTERS) do values[i] = shard.stats[name] end
    end
    local secs = math.max(1, (NOW - before[1]) / 1000)
    for i = 1, counted do
      local name, value = COUNTERS[i], tonumber(values[i] or 0) or 0
      values[i] = value
      app.counters[name] = app.counters[name] + value
      if i <= SAMPLED then app.rates[name] = app.rates[name] + math.max(0, value - before[i + 1]) / secs end
    end
    shard.counted = values
    app.rotated_ms = math.min(app.rotated_ms or NOW, shard.last_rotation_ms)
    app.tick_ms = shard.tick_ms
  end
  local counters = app.counters
  app.pending = counters.inits - counters.acked - counters.failed - counters.timed_out
end

local function hex_of(root)
  local hi, lo = unpack_bytes('>I4I4', root)
  return string.format('%08x%08x', hi, lo)
end

local function component_of(shard, number)
  if number == 0 then return '' end
  shard.names = shard.names or {}
  if not shard.names[number] then
    shard.names[number] = clean(ask('HGET', shard.prefix .. 'meta', 'component:' .. number) or number)
  end
  return shard.names[number]
end

-- The components in which roots failed or timed out, those with most of them first. `count_app` has counted everything.
local function failures_of(app)
  local names, by_number, found = {}, {}, {}
  for name, number in pairs(as_table(ask('HGETALL', 'acker:{' .. app.name .. '}:components') or {})) do names[number] = clean(name) end
  for _, shard in ipairs(app.shards) do
    for name, count in pairs(shard.stats) do
      local outcome, number = string.match(name, '^([a-z_]+):(%d+)$')
      if (outcome == 'failed' or outcome == 'timed_out') and tonumber(number) <= 255 then
        if not by_number[number] then
          by_number[number] = {component = names[number] or component_of(shard, tonumber(number)), failed = 0, timed_out = 0}
          found[#found + 1] = by_number[number]
        end
        by_number[number][outcome] = by_number[number][outcome] + (tonumber(count) or 0)
      end
    end
  end
  local function all_of(row) return row.failed + row.timed_out end
  table.sort(found, function(a, b) return all_of(a) > all_of(b) or (all_of(a) == all_of(b) and a.component < b.component) end)
  return found
end

-- Call a function for the pending roots of a block, once per last component: with one of the roots, their spout_id and start,
-- the number of the component, and its number of roots. Roots of one block have one start.
local function each_pending(number, block, take)
  if #block == ALONE_BYTES then
    local component, flags, _, spout_id, start = unpack_bytes('>BBI2I4I6', block, 9)
    local state = flags % 4
    if state == OWNED then take(root_at(number, (flags - state) / 4), spout_id, start, component, 1) end
    return
  end
  local head = head_of(block)
  local pending = without(head.owned, head.over)
  if pending == 0 then return end
  for component, mask in pairs(by_component(components_of(block, head), head.present, pending)) do
    take(root_at(number, slots_of(mask)[1]), head.spout_id, head.start, component, count_of(mask))
  end
end

-- Sample the pending roots that entered the nursery longest ago, of every shard in turn (or of `some`), until `room` blocks
-- were read or each shard had `enough` roots. Returns the `count` of roots, `components` with count and oldest roots of each,
-- the `oldest` of all, and `until_ms`: all roots that entered before it are in the sample.
local function sample_pending(app, room, enough, some)
  local sample = {count = 0, by_component = {}, oldest = {}, until_ms = nil, is_whole = true}
  local shards = some or app.shards
  local share = math.max(16, math.floor(room / math.max(1, #shards)))
  local shard, count_here

  local function take(root, spout_id, start, component, count)
    count_here = count_here + count
    local name = component == 0 and '' or component_of(shard, component)
    local of_component = sample.by_component[name]
    if not of_component then
      of_component = {name = name, count = 0, oldest = {}}
      sample.by_component[name] = of_component
    end
    of_component.count = of_component.count + count
    of_component.oldest[#of_component.oldest + 1] = {root = root, spout_id = spout_id, start = start, shard = shard.number, component = name}
  end

  for _, sampled in ipairs(shards) do
    shard, count_here = sampled, 0
    local left_over, reached, slots = share, nil, shard.num_buckets + 1
    local step, group = 1, 4 -- a part of the oldest cohort is enough if all of it is pending
    for tick = math.max(0, shard.tick - shard.num_buckets), shard.tick do
      local bucket, offset, stamp = shard.prefix .. 'bucket:' .. tick % slots, 0, tick % 65536
      while left_over > 0 and count_here < enough do
        local cohorts = ask('ZRANGE', bucket, offset, offset + step - 1, 'WITHSCORES') or {}
        left_over = left_over - 0.25 -- a thousand empty buckets cost, too
        for i = 1, #cohorts, 2 do
          local cohort, at = cohorts[i], 1
          reached = tonumber(cohorts[i + 1])
          while at <= #cohort and left_over > 0 and count_here < enough do
            local numbers = {}
            for n = 1, math.min((#cohort - at + 1) / 8, group) do numbers[n] = sub(cohort, at + n * 8 - 8, at + n * 8 - 1) end
            local blocks = ask('HMGET', shard.prefix .. 'ledger', unpack(numbers)) or {}
            for n, number in ipairs(numbers) do
              local block = blocks[n]
              if block and count_here < enough and stamp_of(block) == stamp then each_pending(number, block, take) end
            end
            at, left_over, group = at + #numbers * 8, left_over - #numbers, math.min(group * 2, 64)
          end
        end
        if #cohorts < 2 * step then break end
        offset, step = offset + step, math.min(step * 2, 16)
      end
    end
    sample.count = sample.count + count_here
    if left_over <= 0 or count_here >= enough then
      sample.is_whole = false
      if count_here == 0 and reached then sample.until_ms = math.min(sample.until_ms or reached, reached) end
    end
  end
  sample.components = {}
  for _, of_component in pairs(sample.by_component) do
    table.sort(of_component.oldest, function(a, b) return a.start < b.start end)
    sample.components[#sample.components + 1] = of_component
    local first = of_component.oldest[1]
    if not sample.oldest.start or first.start < sample.oldest.start then sample.oldest = first end
  end
  table.sort(sample.components, function(a, b) return a.count > b.count or (a.count == b.count and a.name < b.name) end)
  return sample
end

local function component_text(name)
  return name == '' and '(no component yet)' or name
end

local function shares_text(sample)
  local parts = {}
  for i = 1, math.min(3, #sample.components) do
    local component = sample.components[i]
    parts[i] = string.format('%s %.0f %%', component_text(component.name), 100 * component.count / sample.count)
  end
  if #sample.components > 3 then parts[4] = #sample.components - 3 .. ' others' end
  return table.concat(parts, ', ')
end

local function oldest_text(sample)
  if sample.oldest.start then return duration(NOW - sample.oldest.start) end
  if sample.until_ms then return '<' .. duration(NOW - sample.until_ms) end
  return '-'
end

-- Wrap a text over several lines, with the later ones indented.
local function wrapped(text, lines)
  local line, words = string.match(text, '^ *'), 0
  local indent = line .. '  '
  for word in string.gmatch(text, '%S+') do
    if words > 0 and width(line) + 1 + width(word) > WIDTH then
      lines[#lines + 1] = line
      line, words = indent, 0
    end
    line, words = words == 0 and line .. word or line .. ' ' .. word, words + 1
  end
  lines[#lines + 1] = line
end

-- Split arguments into names, and words that begin with --.
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
