--[[
exporter: return metrics of every app for redis_exporter, which runs this at each scrape (`--script`).

  redis-cli --raw FCALL_RO acker_exporter 0
  acker-redis script exporter > exporter.lua; redis_exporter --script exporter.lua

ARGV
  none
Returns
  pairs  names such as `orders:pending` and numbers as text, flat; ages in seconds, sizes in roots or entries. redis_exporter
         shows them as redis_script_values{key="orders:pending"}. Counts of topologies have longer names, such as
         `orders:topology:Words:split:lines:default:executed_total`, and so have partitions of Kafka, such as
         `orders:kafka:billing:orders/0:lag`
]]
--- @include "lib/report"
--- @include "lib/programs"
local BLOCKS, EXPORTED = 2000, 5

local metrics = {}
local function say(app, name, value)
  metrics[#metrics + 1] = app.name .. ':' .. name
  metrics[#metrics + 1] = string.format('%.3f', value)
end

local apps = apps_here(nil)
for _, app in ipairs(apps) do
  if open_app(app) then
    count_app(app, EXPORTED)
    app.counters.failed = app.counters.failed - app.counters.released
    local sample = sample_pending(app, BLOCKS / #apps, 4)
    say(app, 'shards_lost', app.lost)
    say(app, 'pending', app.pending)
    for i = 1, EXPORTED do say(app, COUNTERS[i] .. '_total', app.counters[COUNTERS[i]]) end
    if app.rotated_ms then say(app, 'rotation_age_seconds', math.max(0, NOW - app.rotated_ms) / 1000) end
    if sample.oldest.start then say(app, 'oldest_pending_age_seconds', math.max(0, NOW - sample.oldest.start) / 1000) end
    local dead = ask('XLEN', 'acker:{' .. app.name .. '}:dead_letters')
    if dead then
      say(app, 'dead_letters', dead)
      local expired = ask('HGET', 'acker:{' .. app.name .. '}:expired_letters', 'total')
      say(app, 'expired_letters_total', tonumber(expired) or 0)
    end
    if dead then say(app, 'failed_runs', #failed_among(ends_of(app))) end
    local kept = ask('HGET', 'acker:{' .. app.name .. '}:state_sizes', 'total')
    if kept then say(app, 'state_bytes', tonumber(kept) or 0) end
    for _, topology in ipairs(topologies_of(app)) do
      local prefix = 'topology:' .. topology.name .. ':'
      say(app, prefix .. 'running', topology.state == 'running' and 1 or 0)
      say(app, prefix .. 'pending', tonumber(topology.counts.pending) or 0)
      each_count(topology, function(component, kind, stream, count)
        say(app, prefix .. component .. ':' .. stream .. ':' .. kind .. '_total', count)
      end)
    end
    for _, group in ipairs(kafka_groups_of(app)) do
      for _, partition in ipairs(group.partitions) do
        local numbers = numbers_of_partition(partition)
        local prefix = 'kafka:' .. clean(group.name) .. ':' .. clean(partition.name) .. ':'
        if numbers and numbers.lag then say(app, prefix .. 'lag', numbers.lag) end
        if numbers then
          say(app, prefix .. 'open', numbers.open)
          say(app, prefix .. 'done_beyond', numbers.done_beyond)
          if not numbers.has_ended then say(app, prefix .. 'progress_age_seconds', math.max(0, numbers.age) / 1000) end
        end
      end
    end
  end
end
return metrics
