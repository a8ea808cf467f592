#!lua
--[[
store_letters: add dead letters of one record of a publish log, unless a call before this one has added them, or a later record's.
So a driver that repeats a call, or wakes up behind a newer one, adds none a second time.

KEYS
  letter_logs   HASH    acker:{app}:letter_logs
  dead_letters  STREAM  acker:{app}:dead_letters
ARGV
  log       id of the publish log
  record    number of the record
  before    number of letters of the record that earlier calls had
  letters*  of each of at most 100 letters the number of values that follow, 0 if nobody needs it, and its fields' names and values
Returns
  status      ADDED 0, STORED 1: they were added before
  entry_ids*  entry ids of the letters, if they were added
]]
local letter_logs, dead_letters = KEYS[1], KEYS[2]
local log, record, before = ARGV[1], ARGV[2], ARGV[3]
local ADDED, STORED = 0, 1

local newest, count = string.match(redis.call('HGET', letter_logs, log) or '', '^(%d+):(%d+)$')
record, before = tonumber(record), tonumber(before)
newest, count = tonumber(newest) or 0, tonumber(count) or 0
if newest > record then return {STORED} end
if newest < record then count = -1 end

local reply, at, number, values = {ADDED}, 1, before, {unpack(ARGV, 4)}
while values[at] do
  local last = at + tonumber(values[at])
  number = number + 1
  if number > count and last > at then -- earlier calls may have been cut otherwise
    reply[#reply + 1] = redis.call('XADD', dead_letters, '*', unpack(values, at + 1, last))
  end
  at = last + 1
end
if number <= count then return {STORED} end
redis.call('HSET', letter_logs, log, string.format('%d:%d', record, number))
return reply
