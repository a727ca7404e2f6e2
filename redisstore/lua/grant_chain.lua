-- Put behind chain.lua and grant.lua: the same for fences of any epoch.
local epoch = place

-- A fence of a later epoch than 15 is larger than 2^53, so it is put together of
-- two numbers: 2^49 is 562949953 * 10^6 + 421312. ARGV[1] has verbs for both
-- parts of the fence, epoch, seq, server time and expiry.
local function value()
  local low = epoch * 421312 + first % 1000000
  local high = epoch * 562949953 + (first - first % 1000000 + low - low % 1000000) / 1000000
  return format(ARGV[1], high, low % 1000000, epoch, first, now, now + ARGV[3] * 1000)
end

local function record(try)
  local usual = seq
  local function text() return epoch == 1 and format('%d', seq) or format('%d %d', epoch, seq) end
  local last = try('SET', KEYS[2], text(), 'PX', '62000', 'GET')
  if type(last) == 'table' then return last end
  local e, s = recorded(last)
  if e < epoch then
    first = seq -- of this epoch it tells nothing, so there is no range
    return
  end
  if e == epoch then
    if s < first then return end
    first = s + 1
    if s < seq then return end
  else
    first = math.max(s, seq) + 1 -- more than it was, so that it is seen to be another
  end
  epoch, seq = e, first
  call('SET', KEYS[2], text(), 'PX', format('%d', 62000 + (seq - usual) / 500))
end
