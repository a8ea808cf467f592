-- programs: reads what programs of an app wrote about themselves: ends of runs, counts of topologies, progress of groups of Kafka.
--- @include "lib/report"

-- The end of each lane's last run. Empty if it is on another node.
local function ends_of(app)
  local ends = {}
  for lane, text in pairs(as_table(ask('HGETALL', 'acker:{' .. app.name .. '}:ends') or {})) do
    local is_json, ended = pcall(cjson.decode, text)
    if is_json and type(ended) == 'table' then
      ends[tonumber(lane) or -1] = {
        run = clean(ended.run_id), state = clean(ended.state), at = tonumber(ended.at_ms) or 0, error = clean(ended.error),
        emission = tonumber(ended.emission), job = clean(ended.job),
      }
    end
  end
  return ends
end

-- The ends of failed runs, the last first.
local function failed_among(ends)
  local failed = {}
  for _, ended in pairs(ends) do
    if ended.state == 'failed' then failed[#failed + 1] = ended end
  end
  table.sort(failed, function(a, b) return a.at > b.at or (a.at == b.at and a.run < b.run) end)
  return failed
end

-- Emissions under way whose messages aren't counted yet, by lane. A lane that nobody holds has none: its process has died.
local function uncounted_among(app)
  local lanes, uncounted = {}, {}
  for lane, ended in pairs(app.ends) do
    if ended.state == 'begun' and ended.emission then lanes[#lanes + 1] = lane end
  end
  table.sort(lanes)
  for _, lane in ipairs(lanes) do
    if ask('EXISTS', 'acker:{' .. app.name .. '}:lane:' .. lane) == 1 then uncounted[#uncounted + 1] = app.ends[lane] end
  end
  return uncounted
end

-- What messages of spouts wait for, by lane: `outages`, or operators for which they are `set_aside`. A lane that nobody holds
-- has none: its process has died, or is over.
local function waiting_among(app, kind)
  local prefix, lanes, found = 'acker:{' .. app.name .. '}:', {}, {}
  if (tonumber(ask('HLEN', prefix .. 'outages') or 0) or 0) == 0 then return found end
  for lane, text in pairs(as_table(ask('HGETALL', prefix .. 'outages') or {})) do
    local is_json, noted = pcall(cjson.decode, text)
    if is_json and type(noted) == 'table' and type(noted[kind]) == 'table' and ask('EXISTS', prefix .. 'lane:' .. lane) == 1 then
      lanes[#lanes + 1] = {number = tonumber(lane) or -1, noted = noted}
    end
  end
  table.sort(lanes, function(a, b) return a.number < b.number end)
  for _, lane in ipairs(lanes) do
    for _, one in ipairs(lane.noted[kind]) do
      found[#found + 1] = {
        run_id = clean(lane.noted.run_id), operator = clean(one.operator), messages = tonumber(one.messages) or 0,
        since_ms = tonumber(one.since_ms) or 0, error = clean(one.error),
      }
    end
  end
  return found
end

local MOST_TOPOLOGIES = 50

-- Topologies that ran within the last week, by name: their counts, also as JSON, and whether the run holds its lane. A run that
-- never wrote its end and holds no lane has died. Empty if they are on another node, or too many.
local function topologies_of(app)
  local prefix, found = 'acker:{' .. app.name .. '}:', {}
  if (tonumber(ask('HLEN', prefix .. 'topologies') or 0) or 0) > MOST_TOPOLOGIES then return found end
  for name, text in pairs(as_table(ask('HGETALL', prefix .. 'topologies') or {})) do
    local is_json, counts = pcall(cjson.decode, text)
    if is_json and type(counts) == 'table' and type(counts.components) == 'table' then
      local has_lane = type(counts.lane) == 'number'
      local holder = has_lane and ask('GET', string.format('%slane:%d', prefix, counts.lane)) or ''
      local is_held = string.match(holder, '^(.*) [^ ]*$') == counts.run_id
      local has_died = counts.state == 'running' and has_lane and not is_held
      found[#found + 1] = {
        name = clean(name), text = text, counts = counts, is_held = is_held, state = has_died and 'died' or clean(counts.state),
      }
    end
  end
  table.sort(found, function(a, b) return a.name < b.name end)
  return found
end

-- Call a function for each count of a topology, by component, count and stream.
local COUNTS_OF_TOPOLOGIES = {'emitted', 'transferred', 'executed', 'acked', 'failed', 'timed_out'}
local function each_count(topology, take)
  local names = {}
  for name in pairs(topology.counts.components) do names[#names + 1] = name end
  table.sort(names)
  for _, name in ipairs(names) do
    local component = topology.counts.components[name]
    for _, kind in ipairs(COUNTS_OF_TOPOLOGIES) do
      local by_stream = type(component) == 'table' and component[kind]
      for stream, count in pairs(type(by_stream) == 'table' and by_stream or {}) do
        if tonumber(count) then take(clean(name), kind, clean(stream), tonumber(count)) end
      end
    end
  end
end

local MOST_NAMES, MOST_GROUPS, MOST_PARTITIONS = 1000, 20, 1000
local partitions_left = MOST_PARTITIONS

-- Names of the groups of Kafka that were written last. The hash keeps those that don't run any more.
local function latest_groups(key)
  local names, times = {}, {}
  if (tonumber(ask('HLEN', key) or 0) or 0) > MOST_NAMES then return names end
  for name, ms in pairs(as_table(ask('HGETALL', key) or {})) do
    names[#names + 1], times[name] = name, tonumber(ms) or 0
  end
  table.sort(names, function(a, b) return times[a] > times[b] or (times[a] == times[b] and a < b) end)
  for i = #names, MOST_GROUPS + 1, -1 do names[i] = nil end
  return names
end

-- Groups of Kafka whose drivers wrote their progress within the last week, by name: `partitions` has pairs of name and JSON. Empty
-- if they are on another node. A group is left out if it has more partitions than a report may still show.
local function kafka_groups_of(app)
  local prefix, found = 'acker:{' .. app.name .. '}:', {}
  for _, name in ipairs(latest_groups(prefix .. 'kafka_groups')) do
    local key = prefix .. 'kafka_group:' .. name
    local count = tonumber(ask('HLEN', key) or 0) or 0
    if count > 0 and count <= partitions_left then
      partitions_left = partitions_left - count
      local group = {name = name, partitions = {}}
      for partition, text in pairs(as_table(ask('HGETALL', key) or {})) do
        if partition ~= 'letters' then group.partitions[#group.partitions + 1] = {name = partition, text = text} end
      end
      table.sort(group.partitions, function(a, b) return a.name < b.name end)
      if #group.partitions > 0 then found[#found + 1] = group end
    end
  end
  table.sort(found, function(a, b) return a.name < b.name end)
  return found
end

-- The numbers of a partition, or nil if they are damaged: lag (nil: unknown), open, done_beyond, age in ms, letters that are not
-- copied yet, and the problem of the last commit (nil: none).
local function numbers_of_partition(partition)
  local is_json, values = pcall(cjson.decode, partition.text)
  if not is_json or type(values) ~= 'table' then return nil end
  local last, committed = tonumber(values['end']), tonumber(values.committed)
  return {
    lag = last and committed and last - committed or nil, open = tonumber(values.open) or 0,
    done_beyond = tonumber(values.done_beyond) or 0, oldest = tonumber(values.oldest_open),
    reason = type(values.oldest_reason) == 'string' and values.oldest_reason or nil,
    component = type(values.oldest_component) == 'string' and values.oldest_component or nil,
    age = NOW - (tonumber(values.time_ms) or 0), has_ended = values.ended == true,
    letters = tonumber(values.letters_not_copied) or 0, problem = type(values.problem) == 'string' and values.problem or nil,
  }
end
