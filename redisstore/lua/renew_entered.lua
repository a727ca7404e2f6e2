-- renew.lua for an explicit holder.
-- KEYS: 1 lock, 2 set of leases. ARGV: 1 lease, 2 TTL in ms.
local call = redis.call
-- The set alone proves nothing: it may be left from a lock that was deleted.
local mark = call('GETRANGE', KEYS[1], '-1', '-1')
if mark ~= ' ' then return mark == '' and call('PTTL', KEYS[1]) == -2 and 3 or 2 end
local left = call('PTTL', KEYS[1])
local clock = call('TIME')
local now = clock[1] * 1000000 + clock[2]
local ttl = tonumber(ARGV[2])
local expiry = now + ttl * 1000
local old = tonumber(call('ZSCORE', KEYS[2], ARGV[1]) or 0)
if old <= now then return 2 end
if left < ttl then
  call('PEXPIRE', KEYS[1], ARGV[2])
  left = ttl
end
-- In any case, and before ZADD: a server that is out of memory refuses that
-- where a script has written nothing before.
call('PEXPIRE', KEYS[2], left + 1000)
if old < expiry then call('ZADD', KEYS[2], string.format('%d', expiry), ARGV[1]) end
return 1
