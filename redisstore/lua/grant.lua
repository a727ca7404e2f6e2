-- Put in front of acquire.lua and enter.lua.
-- KEYS: 1 lock, 2 fence record.
-- ARGV: 1 lease as JSON, without its opening quote; 2 latest server time, in
-- microseconds, at which the caller still wants the grant; 3 TTL in ms;
-- 4 epoch; 5 rest of the token's JSON, after expireAt.
local call, format, floor = redis.call, string.format, math.floor
local clock = call('TIME')
local now = clock[1] * 1000000 + clock[2]
-- Before anything else: who gave up must get nothing, however late this runs.
if now > tonumber(ARGV[2]) then return -now end

-- seq counts 2 us since 2025-01-01 UTC, one second ahead of the clock, so that
-- it is larger than any before it even where the record was lost.
local clockseq = floor((now - 1735689600000000) / 2)

-- epoch * 2^49 + seq passes 2^53 from epoch 16 on, and a double with it: both
-- halves of the decimal number are computed apart (2^49 = 56294|9953421312).
-- %d is exact: a long has 64 bits, as probe.lua checks.
local function value(seq)
  local low = ARGV[4] * 9953421312 + seq % 10000000000
  local digits = low % 10000000000
  local high = ARGV[4] * 56294 + (seq - seq % 10000000000 + low - digits) / 10000000000
  return format('{"lease":"%s,"fence":"%d%010d","epoch":%s,"seq":%d,"serverTime":%d,"expireAt":%d%s',
    ARGV[1], high, digits, ARGV[4], seq, now, now + ARGV[3] * 1000, ARGV[5])
end

-- record notes and returns the seq of a new hold: the usual one, or a larger
-- one where the record is not behind that (the clock was stepped back). It
-- outlives the moment at which the clock passes seq by a minute, whatever
-- happens to the lock.
local usual = clockseq + 500000
local function record()
  local last = call('SET', KEYS[2], format('%d', usual), 'PX', '62000', 'GET')
  last = last and tonumber(last)
  if not last or last < usual then return usual end
  local seq = last + 1
  call('SET', KEYS[2], format('%d', seq), 'PX', format('%d', 61000 + floor((seq - clockseq) / 500)))
  return seq
end
