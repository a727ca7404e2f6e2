-- acquire.lua for an explicit holder, with the same replies.
-- KEYS: 3 set of the hold's leases, each with its expiry in us.
-- ARGV: 4 lease, 5 holder. The token of an explicit hold ends in a blank:
-- only such a lock is ever entered.

-- holder is nil for what is no token: anybody may have written the key.
local function holder(token)
  local ok, t = pcall(cjson.decode, token)
  return ok and type(t) == 'table' and t.holder or nil
end

local ttl = tonumber(ARGV[3])
local expiry = now + ttl * 1000
local token = call('GET', KEYS[1])
if not token then
  -- First of all, since a script that has written anything may go on where the
  -- server is out of memory: this one is to be refused.
  local refused = record(call)
  if refused then return refused end
  token = value()
  -- A script that is refused halfway must leave neither the lock, which comes
  -- last, nor a set without TTL: the first PEXPIRE finds out whether the
  -- second is allowed. A set alone is nothing.
  call('DEL', KEYS[3])
  call('PEXPIRE', KEYS[3], 1)
  call('ZADD', KEYS[3], format('%d', expiry), ARGV[4])
  -- The set outlives the lock a little, so that it never misses first.
  call('PEXPIRE', KEYS[3], ttl + 1000)
  call('SET', KEYS[1], token, 'PX', ARGV[3])
  return {token, now}
end
local left = call('PTTL', KEYS[1])
call('ZREMRANGEBYSCORE', KEYS[3], '-inf', format('%d', now))
-- Without a living lease in the set nobody holds the lock: it is only kept.
if string.byte(token, -1) ~= 32 or holder(token) ~= ARGV[5] or call('ZCARD', KEYS[3]) == 0 then
  return left .. ' ' .. token
end
if left < ttl then
  call('PEXPIRE', KEYS[1], ARGV[3])
  call('PEXPIRE', KEYS[3], ttl + 1000)
end
local old = call('ZSCORE', KEYS[3], ARGV[4])
if not old or tonumber(old) < expiry then call('ZADD', KEYS[3], format('%d', expiry), ARGV[4]) end
return {token, now}
