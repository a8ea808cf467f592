#!lua flags=allow-oom
--[[
expire_letters: remove dead letters that are older than the app's retention, from a bounded part of the stream per call.
A letter whose replay is requested stays. The request is in the set of the letter's spout_id, or of a spout that took it over.
If the call lacks one of these sets, it removes nothing and returns the spout_ids of all of them.

KEYS
  expired_letters  HASH    acker:{app}:expired_letters
  dead_letters     STREAM  acker:{app}:dead_letters
  replay_takers    SET     acker:{app}:replay_takers
  replays          ZSET*   acker:{app}:replay:<spout_id>
ARGV
  keep_ms     age from which letters are removed
  after       entry id behind which the call begins; empty to begin with the oldest letter
  limit       number of letters to look at, or up to three more; at most 500
  spout_ids*  spout_ids of the replays, in their order
Returns
  status   DONE 0: no older letter is left, except for those that stay; MORE 1; SPOUT_IDS 2: the call lacks replays
  removed  number of letters removed
  after    entry id behind which the next call begins
  needed*  spout_ids of the replays that the call needs, if it lacks some
]]
local expired_letters, dead_letters, replay_takers = KEYS[1], KEYS[2], KEYS[3]
local keep_ms, after, limit = ARGV[1], ARGV[2], ARGV[3]
local DONE, MORE, SPOUT_IDS = 0, 1, 2
local BYTES, LARGE, READ = 262144, 16384, 4 -- a letter may have a mebibyte

-- A spout_id as keys spell it, or nil if it is none. Nobody can request a replay of such an entry.
local function spout_id_in(text)
  local digits = string.match(text, '^0*(%d+)$')
  return digits and #digits <= 10 and digits or nil
end

local time = redis.call('TIME')
local before_ms = time[1] * 1000 + math.floor(time[2] / 1000) - tonumber(keep_ms)
if before_ms <= 0 then return {DONE, 0, after} end
local last = string.format('%.0f', before_ms - 1) -- means the last entry id of this millisecond

local letters, bytes, reached, status = {}, 0, after, MORE
while status == MORE and #letters < tonumber(limit) and bytes < BYTES do
  local count = #letters > 0 and bytes / #letters < LARGE and READ or 1
  local entries = redis.call('XRANGE', dead_letters, reached == '' and '-' or '(' .. reached, last, 'COUNT', count)
  for _, entry in ipairs(entries) do
    local fields, spout_id = entry[2], '0'
    for i = 1, #fields, 2 do
      if fields[i] == 'spout_id' then spout_id = fields[i + 1] end
      bytes = bytes + #fields[i + 1]
    end
    reached = entry[1]
    letters[#letters + 1] = {id = reached, spout_id = spout_id_in(spout_id)}
  end
  if #entries < count then status = DONE end
end
if #letters == 0 then return {DONE, 0, after} end

local replays = 4
local requests, is_needed, needed, takers, lacks_some = {}, {}, {}, {}, false
for i, spout_id in ipairs({unpack(ARGV, 4)}) do
  local key = KEYS[replays + i - 1]
  requests[spout_id] = {key = key, is_empty = redis.call('ZCARD', key) == 0}
end
local function need(spout_id)
  if not spout_id or is_needed[spout_id] then return end
  is_needed[spout_id], needed[#needed + 1] = true, spout_id
  lacks_some = lacks_some or not requests[spout_id]
end
for _, member in ipairs(redis.call('SMEMBERS', replay_takers)) do
  takers[#takers + 1] = spout_id_in(member)
  need(spout_id_in(member))
end
for _, letter in ipairs(letters) do need(letter.spout_id) end
if lacks_some then return {SPOUT_IDS, 0, after, unpack(needed)} end

local function is_requested(letter, spout_id)
  local of_spout = requests[spout_id]
  return not of_spout.is_empty and redis.call('ZSCORE', of_spout.key, letter.id)
end
local function stays(letter)
  if letter.spout_id and is_requested(letter, letter.spout_id) then return true end
  for _, spout_id in ipairs(takers) do
    if is_requested(letter, spout_id) then return true end
  end
  return false
end

local old = {}
for _, letter in ipairs(letters) do
  if not stays(letter) then old[#old + 1] = letter.id end
end
if #old == 0 then return {status, 0, reached} end
local removed = redis.call('XDEL', dead_letters, unpack(old))
redis.call('HINCRBY', expired_letters, 'total', removed)
return {status, removed, reached}
