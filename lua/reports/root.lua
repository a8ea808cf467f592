--[[
root: show all data about one root, or about one message by its id.

  redis-cli --raw FCALL_RO acker_root 0 orders 00000000000003e8
  redis-cli --raw FCALL_RO acker_root 0 orders message 1234
  redis-cli --raw FCALL_RO acker_root 0 orders message 1234 RUN

ARGV
  app     name of the app
  root    root in 16 hex digits, as in reports and fail streams; or the word `message`
  id      message id, in decimal
  run     run id, to show only this run
Returns
  report  text, based on the newest 200 waiting outcomes of each lane, or the newest 10000 dead letters
]]
--- @include "lib/report"
local OUTCOMES, LETTERS, LETTERS_PER_STEP = 200, 10000, 500

local names = arguments({})
local name, wanted, id, run = unpack(names or {})
local is_root = wanted and #wanted == 16 and string.find(wanted, '^%x+$') and not id
local is_message = wanted == 'message' and id and string.find(id, '^-?%d+$')
if not names or not name or not is_app_name(name) or not (is_root or is_message) or #names > 4 then
  return 'usage: redis-cli --raw FCALL_RO acker_root 0 APP ROOT (16 hex digits) | message ID [RUN]'
end
local app, lines = {name = name, seen = {}}, {}
if not open_app(app) then return no_app_text(name) end

local function say(...)
  wrapped(string.format(...), lines)
end

local STATES = {
  [WAITING] = 'waits for its init: acks came first, or the init never will',
  [OWNED] = 'pending',
  [FAILED] = 'failed, and waits for its init',
  [CLOSED] = 'failed: its outcome is written; late acks of it are counted',
}

-- State, ack val, last component, spout_id, start and stamp of a slot in a block. Nil if the slot is empty.
local function slot_of(block, slot)
  block = as_shared(block)
  local head, bit_of = head_of(block), BIT[slot]
  if band(head.present, bit_of) == 0 then return nil end
  local place = places_of(head.present)[slot]
  local hi, lo = unpack_bytes('>I4I4', values_of(block, head), place * 8 - 7)
  local is_owned, has_failed = band(head.owned, bit_of) ~= 0, band(head.failed, bit_of) ~= 0
  local state = (is_owned and 1 or 0) + (has_failed and 2 or 0)
  return band(head.settled, bit_of) == 0 and STATES[state] or 'acked', hi, lo, byte(components_of(block, head), place), head
end

local function look_at_root()
  local bytes = string.gsub(string.lower(wanted), '%x%x', function(pair) return char(tonumber(pair, 16)) end)
  local slot = math.floor(byte(bytes) / 8)
  local number = char(byte(bytes) % 8) .. sub(bytes, 2)
  local seen = 0
  for _, shard in ipairs(app.shards) do
    local block = ask('HGET', shard.prefix .. 'ledger', number)
    if block then
      local state, hi, lo, component, head = slot_of(block, slot)
      if state then
        seen = seen + 1
        say('root %s of %s: %s', wanted, name, state)
        say('  shard %d, spout_id %d, ack value %08x%08x, last component %s', shard.number, head.spout_id, hi, lo,
          component_text(component_of(shard, component)))
        say('  first update %s ago%s', duration(NOW - head.start), head.size > 1 and ', with others of its block' or '')
        local ticks = shard.num_buckets - (shard.tick - head.stamp) % 65536
        say('  times out %s; a tick comes every %s', ticks <= 0 and 'now, because its bucket is death row'
          or 'in ' .. ticks .. (ticks == 1 and ' tick' or ' ticks'), duration(shard.tick_ms))
      end
    end
    for lane = 0, shard.lanes - 1 do
      for _, entry in ipairs(ask('XREVRANGE', shard.prefix .. 'failed:' .. lane, '+', '-', 'COUNT', OUTCOMES) or {}) do
        local fields = as_table(entry[2])
        if fields.root == string.lower(wanted) then
          seen = seen + 1
          say('root %s of %s: %s, not confirmed by its spout yet (entry %s of %sfailed:%d)', wanted, name, clean(fields.reason),
            entry[1], shard.prefix, lane)
          say('  spout_id %s, age %s, last component %s  %s', clean(fields.spout_id), duration(tonumber(fields.age_ms) or 0),
            component_text(clean(fields.last_component or '')), clean(fields.detail or ''))
        end
      end
      for _, entry in ipairs(ask('XREVRANGE', shard.prefix .. 'acked:' .. lane, '+', '-', 'COUNT', OUTCOMES) or {}) do
        local fields = as_table(entry[2])
        local rows = fields.blocks or ''
        for at = 1, #rows - 16, 17 do
          if sub(rows, at, at + 7) == number then
            local mask, age, component = unpack_bytes('>i4I4B', rows, at + 8)
            if band(mask, BIT[slot]) ~= 0 then
              seen = seen + 1
              say('root %s of %s: acked after %s, not confirmed by its spout yet (entry %s of %sacked:%d)', wanted, name,
                duration(age), entry[1], shard.prefix, lane)
              say('  spout_id %s, last component %s', clean(fields.spout_id), component_text(component_of(shard, component)))
            end
          end
        end
      end
    end
  end
  if seen == 0 then
    say('root %s of %s: nothing is known: never seen here, or acked, or failed or timed out and confirmed', wanted, name)
    if app.remote > 0 then say('%d of %d shards are on other nodes: ask these too', app.remote, app.total) end
  end
end

local function look_at_message()
  local prefix = 'acker:{' .. name .. '}:'
  local count, why = ask('XLEN', prefix .. 'dead_letters')
  if not count then
    say('%s: its dead letters are on another node (%s)', name, clean(why))
    return
  end
  local last, looked, seen = '+', 0, 0
  while looked < LETTERS do
    local entries = ask('XREVRANGE', prefix .. 'dead_letters', last, '-', 'COUNT', LETTERS_PER_STEP) or {}
    for _, entry in ipairs(entries) do
      local fields = as_table(entry[2])
      if fields.message_id == id and (not run or fields.run_id == run) and entry[1] ~= last then
        seen = seen + 1
        say('message %s of %s: dead letter %s, its attempts exhausted %s ago', id, name, entry[1],
          duration(NOW - (tonumber(string.match(entry[1], '^%d+')) or NOW)))
        say('  run %s, spout_id %s, %s attempts, %s, last component %s', clean(fields.run_id), clean(fields.spout_id or 0), clean(fields.attempts),
          clean(fields.reason), component_text(clean(fields.last_component or '')))
        if fields.detail then say('  %s', clean(fields.detail)) end
        if fields.payload then say('  message: %s', clean(fields.payload)) end
        local asked = ask('ZSCORE', prefix .. 'replay:' .. (fields.spout_id or 0), entry[1])
        if asked then say('  to be replayed, requested %s ago', duration(NOW - tonumber(asked))) end
      end
    end
    looked = looked + #entries
    if #entries < LETTERS_PER_STEP then break end
    last = entries[#entries][1]
  end
  if seen == 0 then say('message %s of %s: none of %d dead letters is of it', id, name, count) end
  if run and ask('HEXISTS', prefix .. 'payloads:' .. run, id) == 1 then say('  kept by run %s, so not done yet', clean(run)) end
  say('what is pending of it has to be found with the library: `acker-redis pending --app %s --run RUN --message %s`', name, id)
end

if is_root then look_at_root() else look_at_message() end
return table.concat(lines, '\n')
