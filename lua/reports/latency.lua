--[[
latency: show percentiles of the roots' ages when they settled, by outcome, for one app or all, since its shards were created.

  redis-cli --raw FCALL_RO acker_latency 0
  redis-cli --raw FCALL_RO acker_latency 0 orders

ARGV
  app     name of one app, shown with the number of roots per bound
  --json  prints one JSON object, for programs
Returns
  report  text. Percentiles are bounds: p99 5.0s means that 99 of 100 roots took at most 5 s
]]
--- @include "lib/report"
local OUTCOMES = {'acked', 'failed', 'timed_out'}

local names, words = arguments({['--json'] = true})
if not names or #names > 1 or (names[1] and not is_app_name(names[1])) then
  return 'usage: redis-cli --raw FCALL_RO acker_latency 0 [APP] [--json]'
end

-- Counts by bound, of all shards here. A bound is a number of ms, or math.huge.
local function ages_of(app)
  local by_outcome = {}
  for _, outcome in ipairs(OUTCOMES) do by_outcome[outcome] = {total = 0, counts = {}} end
  for _, shard in ipairs(app.shards) do
    for name, count in pairs(as_table(ask('HGETALL', shard.prefix .. 'latency') or {})) do
      local outcome, bound = string.match(name, '^([a-z_]+):(%w+)$')
      local ages = by_outcome[outcome or '']
      bound, count = tonumber(bound) or math.huge, tonumber(count)
      if ages and count then
        ages.total = ages.total + count
        ages.counts[bound] = (ages.counts[bound] or 0) + count
      end
    end
  end
  for _, ages in pairs(by_outcome) do
    ages.bounds = {}
    for bound in pairs(ages.counts) do ages.bounds[#ages.bounds + 1] = bound end
    table.sort(ages.bounds)
  end
  return by_outcome
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
    local by_outcome = ages_of(app)
    local row = {app = app.name, shards = app.total, shards_here = #app.shards, outcomes = {}}
    rows[#rows + 1] = row
    for _, outcome in ipairs(OUTCOMES) do
      local ages = by_outcome[outcome]
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
if #rows == 0 then return names[1] and no_app_text(names[1]) or 'no apps here' end
if #lines == 0 then lines[1] = 'no root has settled yet' end
return table.concat(lines, '\n')
