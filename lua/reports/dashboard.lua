--[[
dashboard: show every app on a server, or one, in 100 columns: which is sick, since when, and why.

  redis-cli --raw FCALL_RO acker_dashboard 0
  redis-cli --raw FCALL_RO acker_dashboard 0 orders
  redis-cli -r -1 -i 2 --raw FCALL_RO acker_dashboard 0 --live

ARGV
  app     name of one app, shown in more detail
  --live  clears the terminal's screen first, for a refresh in place
  --json  prints one JSON object, for programs
Returns
  report  text; on a cluster, about the node that it runs on
]]
--- @include "lib/report"
--- @include "lib/programs"
local CALLS = 900
local BLOCKS = 6000
local SHARDS_SAMPLED = 100
local ROOTS = 2000
local HISTORIES = 64
local MOST_SLOTS = 32
local GONE_MS = 15000
local IDLE_IS_EXACT = (redis.REDIS_VERSION_NUM or 0) >= 0x070200 -- before, reads that found nothing did not count
local SEVERITY = {LOST = 1, FULL = 2, ['NO ROTATOR'] = 3, ['SPOUT GONE'] = 4, HANGS = 5, ['RUN FAILED'] = 6, PAUSED = 7, ok = 8}

local names, words = arguments({['--live'] = true, ['--json'] = true})
if not names or #names > 1 or (names[1] and not is_app_name(names[1])) then
  return 'usage: redis-cli --raw FCALL_RO acker_dashboard 0 [APP] [--live] [--json]' .. (names and '' or ': ' .. words)
end

local facts = server_facts()
local apps, is_whole = apps_here(names[1])

-- Shards of an app that are inspected closely, evenly spread, and the number of shards that each represents.
local function some_of(app, calls_each)
  local most = math.max(1, math.floor(CALLS / #apps / calls_each))
  local step = math.max(1, math.ceil(#app.shards / most))
  local some = {}
  for i = 1, #app.shards, step do some[#some + 1] = app.shards[i] end
  return some, #some > 0 and #app.shards / #some or 0
end

-- Past counters: (ms, inits, acked, failed, timed_out) of some shards, the newest first.
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
  local history = {now}
  for _, turn in ipairs(turns) do
    local sum = by_turn[turn]
    sum[1] = sum[1] / sum.shards
    history[#history + 1] = sum
  end
  return history
end

-- The time since which a condition holds between every two samples, back from now. Nil if it does not hold now.
local function since(app, holds)
  local history, from = history_of(app), nil
  for i = 1, #history - 1 do
    if not holds(history[i], history[i + 1]) then break end
    from = history[i + 1][1]
  end
  return from
end

-- Outcomes that wait in each lane, and the time since a spout last polled it.
local function look_at_lanes(app)
  local lanes = #app.shards > 0 and app.shards[1].lanes or 0
  local some, stands_for = some_of(app, 3 * lanes)
  app.lag, app.lanes = 0, {}
  for lane = 0, lanes - 1 do
    local counted = {number = lane, waiting = 0, idle_ms = nil}
    for _, shard in ipairs(some) do
      local acked, failed = shard.prefix .. 'acked:' .. lane, shard.prefix .. 'failed:' .. lane
      counted.waiting = counted.waiting + ((ask('XLEN', acked) or 0) + (ask('XLEN', failed) or 0)) * stands_for
      for _, consumer in ipairs(ask('XINFO', 'CONSUMERS', acked, 'spout') or {}) do -- a spout polls both kinds at once
        local idle_ms = tonumber(as_table(consumer).idle)
        if idle_ms then counted.idle_ms = math.min(counted.idle_ms or idle_ms, idle_ms) end
      end
    end
    app.lag = app.lag + counted.waiting
    counted.asked_ms = counted.idle_ms
    if not IDLE_IS_EXACT and ask('EXISTS', 'acker:{' .. app.name .. '}:lane:' .. lane) == 1 then
      counted.asked_ms = 0 -- its spout renews the lease, so its process lives
    end
    app.lanes[lane + 1] = counted
  end
end

-- Memory of the app's keys. With very many buckets or lanes it is estimated from some.
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
      add(shard, 'dedup:' .. slot, slot_step)
    end
    for lane = 0, lanes - 1, lane_step do
      add(shard, 'acked:' .. lane, lane_step)
      add(shard, 'failed:' .. lane, lane_step)
    end
  end
  return is_known and total or nil
end

-- Dead letters, how many were removed because of their age, and the reasons of the newest. Nil if they are on another node.
local function look_at_letters(app)
  local stream = 'acker:{' .. app.name .. '}:dead_letters'
  app.dead, app.reasons = ask('XLEN', stream), {}
  local expired = ask('HGET', 'acker:{' .. app.name .. '}:expired_letters', 'total')
  app.expired_letters = app.dead and (tonumber(expired) or 0)
  local counts = {}
  for _, entry in ipairs(app.dead and app.dead > 0 and ask('XREVRANGE', stream, '+', '-', 'COUNT', 100) or {}) do
    local reason = clean(as_table(entry[2]).reason or '?')
    if not counts[reason] then app.reasons[#app.reasons + 1] = reason end
    counts[reason] = (counts[reason] or 0) + 1
  end
  table.sort(app.reasons, function(a, b) return counts[a] > counts[b] or (counts[a] == counts[b] and a > b) end)
  for i, reason in ipairs(app.reasons) do app.reasons[i] = reason .. ' ' .. counts[reason] end
end

-- The time since a spout last polled: the longest of the lanes where outcomes wait, and nil if one was never polled. Without
-- such a lane, the shortest of all lanes. And whether there is such a lane.
local function last_asked(app, only_waiting)
  local longest, shortest, is_any, is_new = nil, nil, false, false
  for _, lane in ipairs(app.lanes) do
    if not only_waiting or lane.waiting > 0 then
      is_any, is_new = true, is_new or not lane.asked_ms
      longest = math.max(longest or 0, lane.asked_ms or 0)
      if lane.asked_ms then shortest = math.min(shortest or lane.asked_ms, lane.asked_ms) end
    end
  end
  if not only_waiting then return shortest, is_any end
  return not is_new and longest or nil, is_any
end

local function state_of(app)
  if app.is_damaged then return 'LOST', nil, 'its settings are damaged: delete it with `acker-redis delete-app`' end
  if app.lost > 0 then
    return 'LOST', nil, string.format('%d of %d shards have no data: a restart without persistence, a flush or an eviction. '
      .. 'Running clients recreate them, and emit again', app.lost, app.total)
  end
  if facts.is_full then
    local from = since(app, function(later, earlier) return later[2] == earlier[2] end)
    return 'FULL', from, 'the server rejects new roots, and still accepts acks. Give it memory (maxmemory), or stop spouts'
  end
  if app.rotated_ms and is_rotation_late(NOW - app.rotated_ms, app.tick_ms) then
    local waits = 'nothing times out'
    for _, topology in ipairs(topologies_of(app)) do
      if topology.state == 'running' then waits = 'only topologies time out their messages' end
    end
    return 'NO ROTATOR', app.rotated_ms, 'no tick since: ' .. waits .. '. Start `acker-redis rotator`'
  end
  local idle_ms, is_waited_for = last_asked(app, true)
  if not is_waited_for and app.pending > 0 then idle_ms, is_waited_for = last_asked(app, false) end
  local is_new = #app.shards == 0 or NOW - app.shards[1].created_ms < GONE_MS
  local is_known = facts.role ~= 'slave' -- a replica does not learn when a spout polled
  if is_known and is_waited_for and (idle_ms and idle_ms > GONE_MS or not idle_ms and not is_new) then
    local text = string.format('%d entries of outcomes wait, %d roots are pending', app.lag, app.pending)
    if not idle_ms then return 'SPOUT GONE', nil, text .. ': no spout has polled them yet' end
    return 'SPOUT GONE', NOW - idle_ms, text .. ': no spout polls them. Start it again'
  end
  if app.pending > 0 and app.rates.timed_out > app.rates.acked then
    local from = since(app, function(later, earlier) return later[5] - earlier[5] > later[3] - earlier[3] end)
    return 'HANGS', from, 'more roots time out than are acked: the operator behind the last component hangs, or drops rows'
  end
  local limit = ask('HGET', 'acker:{' .. app.name .. '}:limits', 'max_pending')
  local most = tonumber(limit)
  if most and #app.shards > 0 and app.pending >= most * #app.shards / app.total then
    return 'FULL', nil, string.format('%d roots are pending, as many as its limit allows: spouts emit nothing until some settle. '
      .. 'See `acker-redis limit`', app.pending)
  end
  local failed = app.failed_runs[1]
  if failed then
    local error = string.gsub(failed.error, '[.%s]+$', '')
    return 'RUN FAILED', failed.at, string.format('run %s ended with %s. Fix the cause, and start it again', failed.run, error)
  end
  local paused = ask('GET', 'acker:{' .. app.name .. '}:pause')
  if paused then
    local from, reason = string.match(paused, '^(%d*) ?(.*)$')
    from = tonumber(from) or 0 -- 0 or missing if a person calls it
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
  app.uncounted = uncounted_among(app)
  app.outages, app.set_aside = waiting_among(app, 'outages'), waiting_among(app, 'set_aside')
  app.memory = memory_of(app)
  local some = some_of(app, CALLS / SHARDS_SAMPLED)
  app.sample = sample_pending(app, BLOCKS / #apps, math.max(4, math.min(64, ROOTS / #apps / math.max(1, #some))), some)
  if app.pending <= 0 and app.sample.count == 0 then app.sample.until_ms = nil end -- there is none that could be older
  app.state, app.since, app.why = state_of(app)
end

local APP_WIDTH, STATE_WIDTH = 10, 14
local HEADER = left('APP', APP_WIDTH) .. ' ' .. left('STATE', STATE_WIDTH) .. ' ' .. right('PEND', 6) .. ' ' .. right('ack/s', 6) .. ' '
  .. right('to/min', 6) .. ' ' .. right('fail/min', 8) .. ' ' .. right('OLDEST', 7) .. ' ' .. right('LAG', 6) .. ' '
  .. right('ROTATOR', 9) .. ' ' .. right('MEM', 5) .. ' DEAD'

local function state_text(app)
  local top = app.sample.components[1]
  local text = app.state == 'HANGS' and top and top.name ~= '' and 'HANGS: ' .. top.name or app.state
  return width(text) <= STATE_WIDTH and text or app.state
end

local DEAD_WIDTH = 13

-- The number of dead letters, and their reasons if there is room for all of them. Else those have a line of their own.
local function dead_text(app)
  if not app.dead then return '-', true end
  local text = table.concat({amount(app.dead), unpack(app.reasons)}, ' ')
  local fits = width(text) <= DEAD_WIDTH
  return fits and text or amount(app.dead), fits
end

local function row_of(app)
  local rotator = '-'
  if app.rotated_ms then
    local age = short(NOW - app.rotated_ms)
    rotator = app.state == 'NO ROTATOR' and age .. '!' or age .. '/' .. short(app.tick_ms)
  end
  local is_long = width(app.name) > APP_WIDTH -- it has a line of its own
  return (is_long and app.name .. '\n' or '') .. table.concat({
    left(is_long and '' or app.name, APP_WIDTH), left(state_text(app), STATE_WIDTH), right(amount(app.pending), 6), right(amount(app.rates.acked), 6),
    right(amount(app.rates.timed_out * 60), 6), right(amount(app.rates.failed * 60), 8), right(oldest_text(app.sample), 7),
    right(amount(app.lag), 6), right(rotator, 9), right(app.memory and size(app.memory) or '-', 5),
    (dead_text(app)),
  }, ' ')
end

local function explain(app, lines)
  if app.state ~= 'ok' then
    local from = app.since and string.format(' since %s, for %s', clock(app.since), duration(NOW - app.since)) or ''
    wrapped(app.name .. ' ' .. app.state .. from .. ': ' .. app.why, lines)
  end
  local _, has_room = dead_text(app)
  if not has_room then
    wrapped(string.format('%s has %d dead letters, the newest for these reasons: %s', app.name, app.dead,
      table.concat(app.reasons, ', ')), lines)
  end
  for _, begun in ipairs(app.uncounted) do
    wrapped(string.format('%s run %s: emission %d since %s, for %s, jobs %s, messages not counted yet', app.name, begun.run, begun.emission,
      clock(begun.at), duration(NOW - begun.at), begun.job), lines)
  end
  for _, outage in ipairs(app.outages) do
    local place = outage.operator ~= '' and outage.operator or 'something unreachable'
    wrapped(string.format('%s run %s waits for %s since %s, for %s, with %d message%s: %s', app.name, outage.run_id, place,
      clock(outage.since_ms), duration(NOW - outage.since_ms), outage.messages, outage.messages == 1 and '' or 's', outage.error), lines)
  end
  for _, aside in ipairs(app.set_aside) do
    wrapped(string.format('%s run %s has not tried %d message%s since %s, for %s, because %s has processed no other: %s', app.name,
      aside.run_id, aside.messages, aside.messages == 1 and '' or 's', clock(aside.since_ms), duration(NOW - aside.since_ms),
      aside.operator, aside.error), lines)
  end
  if app.sample.count > 0 and (app.state == 'HANGS' or names[1]) then
    local oldest = app.sample.oldest
    wrapped(string.format('%s pending by last component: %s (of %d sampled), oldest %s, root %s', app.name, shares_text(app.sample),
      app.sample.count, duration(NOW - oldest.start), hex_of(oldest.root)), lines)
  end
end

-- A topology, and a line for each component that has counts.
local function explain_topology(topology, lines)
  local counts, sums, order = topology.counts, {}, {}
  local turns = tonumber(counts.turns) and string.format(', %d turns', counts.turns) or ''
  local error = type(counts.error) == 'string' and ' with ' .. string.gsub(clean(counts.error), '%.$', '') or ''
  wrapped(string.format('topology %s %s%s: run %s%s, %d pending, counted %s ago', topology.name, topology.state, error,
    clean(counts.run_id), turns, tonumber(counts.pending) or 0, duration(NOW - (tonumber(counts.at_ms) or NOW))), lines)
  each_count(topology, function(component, kind, _, count)
    if not sums[component] then
      sums[component] = {}
      order[#order + 1] = component
    end
    sums[component][kind] = (sums[component][kind] or 0) + count
  end)
  for _, component in ipairs(order) do
    local parts = {}
    for _, kind in ipairs(COUNTS_OF_TOPOLOGIES) do
      local sum = sums[component][kind]
      if sum and sum > 0 then parts[#parts + 1] = string.format('%s %d', (string.gsub(kind, '_', ' ')), sum) end
    end
    if #parts > 0 then wrapped('  ' .. component .. ': ' .. table.concat(parts, ', '), lines) end
  end
end

-- A name that keys quote, as `__held%3Arate`, in its own spelling.
local function unquoted(name)
  return (string.gsub(name, '%%(%x%x)', function(code) return string.char(tonumber(code, 16)) end))
end

-- Sizes of the state of topologies: task -> bytes, their total, and the limit. Empty if they are on another node.
local function state_sizes_of(app)
  return as_table(ask('HGETALL', 'acker:{' .. app.name .. '}:state_sizes') or {})
end

-- The state of each bolt of topologies, if there is any.
local function explain_state(app, lines)
  local sizes, bolts, names = state_sizes_of(app), {}, {}
  for task, bytes in pairs(sizes) do
    local name = string.match(task, '^(.*:.*):%d+$')
    if name then
      if not bolts[name] then
        bolts[name] = {tasks = 0, bytes = 0, most = 0}
        names[#names + 1] = name
      end
      local bolt = bolts[name]
      bolt.tasks, bolt.bytes = bolt.tasks + 1, bolt.bytes + (tonumber(bytes) or 0)
      bolt.most = math.max(bolt.most, tonumber(bytes) or 0)
    end
  end
  table.sort(names)
  for i, name in ipairs(names) do
    local bolt = bolts[name]
    local several = bolt.tasks > 1 and string.format(' in %d tasks, the largest %s', bolt.tasks, size(bolt.most)) or ''
    names[i] = clean(unquoted(name)) .. ' ' .. size(bolt.bytes) .. several
  end
  if #names > 0 then
    local limit = tonumber(sizes.limit) and ' of ' .. size(tonumber(sizes.limit)) or ''
    wrapped('state     ' .. size(tonumber(sizes.total) or 0) .. limit .. ': ' .. table.concat(names, '; '), lines)
  end
end

local WORST_PARTITIONS = 3
local STALE_MS = 60000 -- a driver writes its partitions once a second

-- What holds up the commits of a group: partitions without a driver (unless the whole group ended), dead letters without a copy,
-- and the first problem.
local function explain_commits(known, group_has_ended, lines)
  local without, letters, problem = {}, 0, nil
  for _, numbers in ipairs(known) do
    if not group_has_ended and (numbers.has_ended or numbers.age > STALE_MS) then without[#without + 1] = clean(numbers.name) end
    letters = letters + numbers.letters
    problem = problem or numbers.problem and clean(numbers.name) .. ': ' .. clean(numbers.problem)
  end
  if #without > 0 then
    local names = table.concat(without, ', ', 1, math.min(#without, WORST_PARTITIONS))
    wrapped(string.format('  %d without a driver, so their numbers are old: %s%s', #without, names,
      #without > WORST_PARTITIONS and ', ...' or ''), lines)
  end
  if letters > 0 then
    lines[#lines + 1] = string.format('  %d dead letters are not copied yet, and their offsets wait', letters)
  end
  if problem then wrapped('  offsets are not committed, ' .. problem, lines) end
end

-- A group of Kafka, a line for each of the partitions with the largest lag, and what holds up its commits.
local function explain_group(group, lines)
  local known, lag, open, done, age, has_ended = {}, 0, 0, 0, 0, true
  for _, partition in ipairs(group.partitions) do
    local numbers = numbers_of_partition(partition)
    if numbers then
      numbers.name = partition.name
      known[#known + 1] = numbers
      lag, open, done = lag + (numbers.lag or 0), open + numbers.open, done + numbers.done_beyond
      age, has_ended = math.max(age, numbers.age), has_ended and numbers.has_ended
    end
  end
  wrapped(string.format('group %s of Kafka: lag %s in %d partitions, %d open, %d done beyond, %s %s ago', clean(group.name),
    amount(lag), #known, open, done, has_ended and 'ended' or 'written', duration(age)), lines)
  table.sort(known, function(a, b) return (a.lag or -1) > (b.lag or -1) or (a.lag == b.lag and a.name < b.name) end)
  for i = 1, math.min(#known, WORST_PARTITIONS) do
    local worst = known[i]
    local oldest = worst.oldest and string.format(', oldest open %.0f', worst.oldest) or ''
    local cause = worst.reason and ' ' .. clean(worst.reason) .. (worst.component and ' in ' .. clean(worst.component) or '') or ''
    if (worst.lag or 0) > 0 then
      wrapped(string.format('  %s: lag %s, %d open%s%s', clean(worst.name), amount(worst.lag), worst.open, oldest, cause), lines)
    end
  end
  explain_commits(known, has_ended, lines)
end

local FAILURES = 10

local function more_of(app, lines)
  local counters = app.counters
  lines[#lines + 1] = ''
  wrapped(string.format('settings  %d shards (%d here), %d buckets, a tick every %s, clock %s, %d lanes', app.total or 0, #app.shards,
    app.shards[1] and app.shards[1].num_buckets or 0, duration(app.tick_ms), clean(app.shards[1] and app.shards[1].clock or '-'),
    #app.lanes), lines)
  wrapped(string.format('so far    %d inits, %d acked, %d failed, %d timed out; %d late, %d deduplicated, %d orphaned, %d wait for their init',
    counters.inits, counters.acked, counters.failed, counters.timed_out, counters.late_updates, counters.deduplicated,
    counters.orphaned, counters.unowned), lines)
  local failures = failures_of(app)
  local parts = {}
  for i = 1, math.min(FAILURES, #failures) do
    local row = failures[i]
    parts[i] = string.format('%s %d failed, %d timed out', component_text(row.component), row.failed, row.timed_out)
  end
  if #failures > FAILURES then parts[FAILURES + 1] = #failures - FAILURES .. ' other components' end
  if #parts > 0 then wrapped('failures  ' .. table.concat(parts, '; '), lines) end
  local retention = ask('HGET', 'acker:{' .. app.name .. '}:limits', 'dead_letter_days')
  local days = tonumber(retention)
  if app.dead and (days or app.expired_letters > 0) then
    wrapped(string.format('letters   %d, kept %s; %d removed so far because of their age', app.dead,
      days and string.format('for %g day%s', days, days == 1 and '' or 's') or 'until you delete them', app.expired_letters), lines)
  end
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
      wrapped(string.format('lane %-4d %d entries of outcomes wait; polled %s; held by %s%s', lane.number, lane.waiting,
        lane.idle_ms and duration(lane.idle_ms) .. ' ago' or 'never', holder and clean(holder) or 'nobody', last), lines)
    end
  end
  for _, topology in ipairs(topologies_of(app)) do explain_topology(topology, lines) end
  explain_state(app, lines)
  for _, group in ipairs(kafka_groups_of(app)) do explain_group(group, lines) end
end

local shown = {}
for _, app in ipairs(apps) do
  if open_app(app) then
    look_at(app)
    shown[#shown + 1] = app
  end
end
table.sort(shown, function(a, b)
  local first, second = SEVERITY[a.state], SEVERITY[b.state]
  return first < second or (first == second and a.name < b.name)
end)

if words['--json'] then
  local rows = {}
  for i, app in ipairs(shown) do
    local components = {}
    for n, component in ipairs(app.sample.components) do
      components[n] = {component = component.name, count = component.count}
    end
    local failures = failures_of(app)
    local topologies = {}
    local uncounted = {}
    for n, begun in ipairs(app.uncounted) do
      uncounted[n] = {run_id = begun.run, emission = begun.emission, job = begun.job, since_ms = begun.at}
    end
    for n, topology in ipairs(topologies_of(app)) do topologies[n] = {counts = topology.text, is_held = topology.is_held} end
    local partitions = {}
    for _, group in ipairs(kafka_groups_of(app)) do
      for _, partition in ipairs(group.partitions) do
        partitions[#partitions + 1] = {group = group.name, partition = partition.name, numbers = partition.text}
      end
    end
    rows[i] = {
      app = app.name, state = app.state, since_ms = app.since, why = app.why, shards = app.total, shards_here = #app.shards,
      pending = app.pending, acked_per_sec = app.rates.acked, timed_out_per_min = app.rates.timed_out * 60,
      failed_per_min = app.rates.failed * 60, oldest_ms = app.sample.oldest.start and NOW - app.sample.oldest.start,
      waiting = app.lag, rotated_ms_ago = app.rotated_ms and NOW - app.rotated_ms, tick_ms = app.tick_ms, memory_bytes = app.memory,
      dead_letters = app.dead, expired_letters = app.expired_letters or nil, failed_runs = #app.failed_runs, counters = app.counters, pending_by_component = #components > 0 and components or nil,
      failed_by_component = #failures > 0 and failures or nil,
      topologies = #topologies > 0 and topologies or nil, state_sizes = state_sizes_of(app),
      kafka_partitions = #partitions > 0 and partitions or nil,
      uncounted = #uncounted > 0 and uncounted or nil,
      outages = #app.outages > 0 and app.outages or nil, set_aside = #app.set_aside > 0 and app.set_aside or nil,
    }
  end
  return cjson.encode({address = facts.address, used_bytes = facts.used, maxmemory_bytes = facts.most, is_whole = is_whole,
    at_ms = NOW, apps = #rows > 0 and rows or nil})
end

local lines = {server_line(facts)}
if #shown == 0 then
  lines[2] = names[1] and no_app_text(names[1]) or 'no apps here'
else
  lines[2] = HEADER
  for _, app in ipairs(shown) do lines[#lines + 1] = row_of(app) end
  for _, app in ipairs(shown) do explain(app, lines) end
  if names[1] then more_of(shown[1], lines) end
end
if facts.cluster_enabled == '1' then lines[#lines + 1] = 'a node of a cluster: shards of other nodes are not counted here' end
if not is_whole then lines[#lines + 1] = 'not all keys were read: name an app' end
return (words['--live'] and '\27[H\27[2J' or '') .. table.concat(lines, '\n')
