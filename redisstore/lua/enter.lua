-- acquire.lua for an explicit holder, with the same replies.
-- KEYS: 3 set of the hold's leases, each with its expiry in us.
-- ARGV: 6 lease, 7 holder. The token of an explicit hold ends in a blank:
-- only such a lock is ever entered.
local ttl = tonumber(ARGV[3])
local expiry = now + ttl * 1000
local token = call('GET', KEYS[1])
if not token then
  local seq = clockseq + 500000
  seq = record(seq) or seq
  token = value(seq)
  call('SET', KEYS[1], token, 'PX', ARGV[3])
  call('DEL', KEYS[3])
  call('ZADD', KEYS[3], format('%d', expiry), ARGV[6])
  -- The set outlives the lock a little, so that it never misses first.
  call('PEXPIRE', KEYS[3], ttl + 1000)
  return {token, now}
end
local left = call('PTTL', KEYS[1])
call('ZREMRANGEBYSCORE', KEYS[3], '-inf', format('%d', now))
-- Without a living lease in the set nobody holds the lock: it is only kept.
if string.byte(token, -1) ~= 32 or cjson.decode(token).holder ~= ARGV[7] or call('ZCARD', KEYS[3]) == 0 then
  return left .. ' ' .. token
end
local old = call('ZSCORE', KEYS[3], ARGV[6])
if not old or tonumber(old) < expiry then call('ZADD', KEYS[3], format('%d', expiry), ARGV[6]) end
if left < ttl then
  call('PEXPIRE', KEYS[1], ARGV[3])
  call('PEXPIRE', KEYS[3], ttl + 1000)
end
return {token, now}
