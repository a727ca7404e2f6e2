-- Puts a hold of another mode in. Behind chain.lua and judge.lua; exclusive.lua
-- stands before it where the call is exclusive. Replies 1 owned, 2 taken.
-- KEYS: 1 lock, 2 fence record of the slot, 3 set of leases (explicit holders).
-- ARGV: 1 token; 2 lease as JSON, without its opening quote; 3 TTL in ms; 4 fence;
-- 5 epoch and 6 seq of that; 7 lease; 8 holder; 9 1 if it is exclusive.
local call, format = redis.call, string.format
local clock = call('TIME')
local now = clock[1] * 1000000 + clock[2]
local ttl, exclusive = tonumber(ARGV[3]), ARGV[9] == '1'
local last, seq = recorded(call('GET', KEYS[2]))
if exclusive and last > place then return refused('fence record', last) end

-- Whole decimal numbers, as text: those of later epochs are too large.
local function above(a, b) return #a > #b or #a == #b and a > b end

-- One explicit hold has one fence, whoever of its holder adopts it first.
local function mine(token, fence)
  if not KEYS[3] then return string.sub(token, 11, 10 + #ARGV[2]) == ARGV[2] end
  if string.byte(token, -1) ~= 32 then return false end
  if call('ZSCORE', KEYS[3], ARGV[7]) then return true end
  local ok, t = pcall(cjson.decode, token)
  return fence == ARGV[4] and ok and t.holder == ARGV[8]
end

local token = call('GET', KEYS[1])
local left, own, keep, join = -2, false, false, false
if token then
  left = call('PTTL', KEYS[1])
  local fence, epoch = stored(token)
  if not epoch then return 2 end
  if exclusive and epoch > place then return refused('key', epoch) end
  own = mine(token, fence)
  if not own and (epoch > place or epoch == place and above(fence, ARGV[4])) then return 2 end
  -- Ours, and written later than this was sent.
  keep = own and (epoch > place or epoch == place and not above(ARGV[4], fence))
  join = own and (epoch >= place or not exclusive)
end
-- First of all, since a script that has written anything may go on where the
-- server is out of memory: what is new is to be refused.
local e, s = tonumber(ARGV[5]), tonumber(ARGV[6])
if e > last or e == last and s > seq then
  -- The record outlives the moment at which the clock passes seq by a minute.
  local ahead = math.max(0, s - ((now - now % 2) / 2 - 867844799500000))
  call('SET', KEYS[2], e == 1 and ARGV[6] or ARGV[5] .. ' ' .. ARGV[6], 'PX', format('%d', 62000 + ahead / 500))
end
local life = math.max(ttl, own and (join or not KEYS[3]) and left or 0)
if KEYS[3] then
  -- In any case before ZADD: what is not new is not to be refused. (And where
  -- it is not allowed no set is left without TTL.)
  if not join then call('DEL', KEYS[3]) end
  call('PEXPIRE', KEYS[3], format('%d', life + 1000))
  local expiry = math.max(now + ttl * 1000, join and tonumber(call('ZSCORE', KEYS[3], ARGV[7]) or 0) or 0)
  call('ZADD', KEYS[3], format('%d', expiry), ARGV[7])
  call('PEXPIRE', KEYS[3], format('%d', life + 1000))
end
if not keep then
  call('SET', KEYS[1], ARGV[1], 'PX', format('%d', life))
elseif left < ttl then
  call('PEXPIRE', KEYS[1], ARGV[3])
end
if token and not own then shorter(left, ttl) end
return 1
