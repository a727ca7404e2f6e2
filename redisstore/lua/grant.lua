-- Put in front of acquire.lua and enter.lua.
-- KEYS: 1 lock, 2 fence record of the slot.
-- ARGV: 1 token as a format, with %d for fence, seq, server time and expiry;
-- 2 latest server time, in microseconds, at which the caller still wants the
-- grant; 3 TTL in ms.
local call, format = redis.call, string.format
local clock = call('TIME')
local now = clock[1] * 1000000 + clock[2]
-- Before anything else: who gave up must get nothing, however late this runs.
if now > tonumber(ARGV[2]) then return -now end

-- seq counts 2 us since 2025-01-01 UTC, one second ahead of the clock, so that
-- it is larger than any before it even where the record was lost.
local seq = (now - now % 2) / 2 - 867844799500000
if seq <= 500000 then return redis.error_reply('CLOCK the clock of the server stands before 2025') end
-- first is the fence of the grant, seq the last of the range that it reserves.
local first = seq

-- fence is epoch * 2^49 + seq, in epoch 1: below 2^53, so doubles are exact.
-- (%d is, too: a long has 64 bits, as probe.lua checks.)
local function value()
  return format(ARGV[1], first + 562949953421312, first, now, now + ARGV[3] * 1000)
end

-- record notes seq, and makes it larger where the record is not behind it: the
-- clock was stepped back, or a replica with another clock was promoted. A range
-- ends where a grant without one has its fence, and begins above the record;
-- where there is none, anything up to a second ahead of the clock may have been
-- given out, and there is no range. The record outlives the moment at which the clock passes seq by a minute,
-- whatever happens to the lock. With redis.pcall as try it returns the error if
-- that is refused.
local function record(try)
  local last = try('SET', KEYS[2], format('%d', seq), 'PX', '62000', 'GET')
  if type(last) == 'table' then return last end
  local text = last or ''
  last = tonumber(text)
  -- Neither "nan" nor what does not fit below 2^49 was written here; past that
  -- %d and the TTL would be nonsense, and an error here would leave the lock.
  if not (last and last >= 0 and last < 562949953421311) then
    first = seq
    local epoch, far = string.match(text, '^(%d+) (%d+)$')
    if not epoch then return end
    -- A chain's, see chain.lua: no fence from here is larger.
    call('SET', KEYS[2], text, 'PX', format('%d', 62000 + math.max(0, far - seq) / 500))
    return redis.error_reply('CHAIN locks here are those of a chain, in epoch ' .. epoch)
  end
  if last < first then return end
  first = last + 1
  if last < seq then return end
  local ttl = 62000 + (first - seq) / 500
  seq = first
  call('SET', KEYS[2], format('%d', seq), 'PX', format('%d', ttl))
end
