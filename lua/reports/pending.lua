--[[
pending: count the pending roots of an app by their last component, with the oldest roots of each.

  redis-cli --raw FCALL_RO acker_pending 0 orders
  redis-cli --raw FCALL_RO acker_pending 0 orders 10

ARGV
  app     name of the app
  count   number of roots to show per component, 3 by default
  --json  prints one JSON object, for programs
Returns
  report  text, based on the roots that entered the nursery longest ago, at most 20000 blocks
]]
--- @include "lib/report"
local BLOCKS = 20000
local ROOTS = 20000

local names, words = arguments({['--json'] = true})
local app, most = {name = names and names[1] or '', seen = {}}, tonumber(names and names[2] or 3)
if not names or #names < 1 or #names > 2 or not is_app_name(app.name) or not most or most < 1 then
  return 'usage: redis-cli --raw FCALL_RO acker_pending 0 APP [COUNT] [--json]'
end
if not open_app(app) then
  return words['--json'] and '{}' or no_app_text(app.name)
end

count_app(app, SAMPLED)
local sample = sample_pending(app, BLOCKS, math.max(32, ROOTS / math.max(1, #app.shards)))

if words['--json'] then
  local components = {}
  for n, component in ipairs(sample.components) do
    local roots = {}
    for i = 1, math.min(most, #component.oldest) do
      local root = component.oldest[i]
      roots[i] = {root = hex_of(root.root), spout_id = root.spout_id, shard = root.shard, age_ms = NOW - root.start}
    end
    components[n] = {component = component.name, count = component.count, oldest_ms = NOW - component.oldest[1].start, oldest = roots}
  end
  return cjson.encode({app = app.name, pending = app.pending, shards = app.total, shards_here = #app.shards, looked_at = sample.count,
    is_whole = sample.is_whole, components = #components > 0 and components or nil})
end

local lines = {string.format('%s  %d pending on %d of %d shards; %s %d sampled, the oldest first', app.name, app.pending,
  #app.shards, app.total or 0, sample.is_whole and 'all' or 'the oldest', sample.count)}
if sample.count == 0 then
  lines[2] = sample.until_ms and 'none found among roots older than ' .. duration(NOW - sample.until_ms)
    or 'nothing is pending'
else
  lines[2] = left('LAST COMPONENT', 40) .. ' ' .. right('ROOTS', 7) .. ' ' .. right('SHARE', 6) .. ' ' .. right('OLDEST', 7)
  for _, component in ipairs(sample.components) do
    lines[#lines + 1] = left(component_text(component.name), 40) .. ' ' .. right(amount(component.count), 7) .. ' '
      .. right(string.format('%.0f %%', 100 * component.count / sample.count), 6) .. ' ' .. right(duration(NOW - component.oldest[1].start), 7)
    for i = 1, math.min(most, #component.oldest) do
      local root = component.oldest[i]
      lines[#lines + 1] = string.format('  root %s  spout_id %d  shard %d  %s old', hex_of(root.root), root.spout_id, root.shard,
        duration(NOW - root.start))
    end
  end
end
return table.concat(lines, '\n')
