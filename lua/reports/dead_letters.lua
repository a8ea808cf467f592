--[[
dead_letters: count dead letters by reason and last component, for one app or all.

  redis-cli --raw FCALL_RO acker_dead_letters 0
  redis-cli --raw FCALL_RO acker_dead_letters 0 orders

ARGV
  app     name of one app; omit it for all
Returns
  report  text, based on the newest 1000 letters of an app, 5000 of all apps
]]
--- @include "lib/report"
local MOST, MOST_OF_ALL = 1000, 5000

local names = arguments({})
if not names or #names > 1 or (names[1] and not is_app_name(names[1])) then
  return 'usage: redis-cli --raw FCALL_RO acker_dead_letters 0 [APP]'
end

local function milliseconds(entry_id)
  return tonumber(string.match(entry_id, '^%d+')) or NOW
end

-- Whether a spout can replay a letter. Letters of a batch run need that run, which holds a lane as long as it goes on.
local function can_replay(app, fields)
  if fields.replay ~= 'run' then return fields.replay end
  if not app.runs then
    app.runs = {}
    for lane = 0, (tonumber(ask('HGET', 'acker:{' .. app.name .. '}:config', 'lanes')) or 1) - 1 do
      local holder = ask('GET', 'acker:{' .. app.name .. '}:lane:' .. lane)
      if holder then app.runs[string.match(holder, '^(.*) ') or ''] = true end
    end
  end
  return app.runs[fields.run_id]
end

local apps = apps_here(names[1])
local lines, here = {}, 0
for _, app in ipairs(apps) do
  local stream = 'acker:{' .. app.name .. '}:dead_letters'
  local count, why = ask('XLEN', stream)
  if not count and names[1] then
    wrapped(app.name .. ': its dead letters are on another node (' .. clean(why) .. ')', lines)
  elseif count and (count > 0 or names[1]) then
    here = here + 1
    local room = math.min(MOST, math.floor(MOST_OF_ALL / #apps))
    local groups, order = {}, {}
    local entries = ask('XREVRANGE', stream, '+', '-', 'COUNT', math.max(10, room)) or {}
    for _, entry in ipairs(entries) do
      local fields = as_table(entry[2])
      local reason, component = clean(fields.reason or '(no letter)'), clean(fields.last_component or '')
      local key = reason .. '\0' .. component
      local group = groups[key]
      if not group then -- the newest is first
        group = {reason = reason, component = component, count = 0, replayable = 0, newest = entry[1], example = fields}
        groups[key], order[#order + 1] = group, group
      end
      group.count, group.oldest = group.count + 1, entry[1]
      if can_replay(app, fields) then group.replayable = group.replayable + 1 end
    end
    table.sort(order, function(a, b) return a.count > b.count or (a.count == b.count and a.reason .. a.component < b.reason .. b.component) end)
    lines[#lines + 1] = string.format('%s  %d dead letters%s', app.name, count,
      count > #entries and '; of these the newest ' .. #entries or '')
    if #order > 0 then
      lines[#lines + 1] = left('REASON', 10) .. ' ' .. left('LAST COMPONENT', 20) .. ' ' .. right('LETTERS', 7) .. ' '
        .. right('REPLAY', 6) .. ' ' .. right('OLDEST', 7) .. ' ' .. right('NEWEST', 7) .. ' NEWEST MESSAGE, DETAIL'
    end
    for _, group in ipairs(order) do
      lines[#lines + 1] = left(group.reason, 10) .. ' ' .. left(component_text(group.component), 20) .. ' ' .. right(amount(group.count), 7)
        .. ' ' .. right(amount(group.replayable), 6) .. ' ' .. right(duration(NOW - milliseconds(group.oldest)), 7) .. ' '
        .. right(duration(NOW - milliseconds(group.newest)), 7) .. ' '
        .. cut(clean((group.example.message_id or '?') .. ' ' .. (group.example.detail or '')), 36)
    end
  end
end
if #lines == 0 then lines[1] = 'no dead letters here' end
return table.concat(lines, '\n')
